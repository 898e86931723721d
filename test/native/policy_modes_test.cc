// Policy losses by hand, mode by mode.
#include <ATen/ATen.h>

#include "check.h"
#include "loss_inputs.h"
#include "losses/losses.h"

using namespace troupe;
using namespace troupe::test;

TEST(vanilla_by_hand) {
  PolicyInputs in;
  in.layout = small_layout();
  // Ratios: 1 | masked | 2 with A = 1 (clipped at 1.3) | 5 with A = -1 (dual clip at 3) | 0.5 with A = -1
  // (clipped at 0.8) | masked.
  in.old_log_probs = at::zeros({6});
  in.log_probs = floats({0, kNan, std::log(2.0f), std::log(5.0f), std::log(0.5f), kNan});
  in.advantages = floats({2, kNan, 1, -1, -1, kNan});
  const PolicyLoss result = policy_loss(in, options_for("vanilla"));
  CHECK_CLOSE(result.loss, (-2 - 1.3 + 3 + 0.8) / 4, 1e-7);
  CHECK_CLOSE(result.metrics.at("pg_loss"), result.loss, 0);
  CHECK_CLOSE(result.metrics.at("pg_clipfrac"), 2.0 / 4, 1e-8);
  CHECK_CLOSE(result.metrics.at("pg_clipfrac_lower"), 1.0 / 4, 1e-8);
  CHECK_CLOSE(result.metrics.at("ppo_kl"), -std::log(5.0) / 4, 1e-7);
  CHECK(at::allclose(result.grad_log_probs, floats({-0.5, 0, 0, 0, 0, 0}), 1e-6, 1e-8));
  CHECK(!result.grad_entropy.defined());
}

TEST(equal_policies_have_ratio_exactly_one) {
  at::manual_seed(1);
  for (const std::string mode : {"vanilla", "gspo", "cispo"}) {
    PolicyInputs in = random_inputs({5, 9, 1});
    in.log_probs = in.old_log_probs;
    const PolicyLoss result = policy_loss(in, options_for(mode));
    CHECK(result.metrics.at("ppo_kl") == 0 && result.metrics.at("pg_clipfrac") == 0);
    CHECK(result.metrics.at("pg_clipfrac_lower") == 0);
  }
}

TEST(gspo_spreads_the_sequence_ratio) {
  PolicyInputs in;
  in.layout = {at::tensor(std::vector<int64_t>{0, 2, 4}, at::kLong), at::ones({4}, at::kByte), 4, 2};
  in.old_log_probs = floats({-1, -2, -1, -1});
  in.log_probs = floats({-0.9f, -1.9f, -1, -3});  // mean log ratios 0.1 and -1
  in.advantages = floats({1, 2, -1, 1});
  const PolicyLoss result = policy_loss(in, options_for("gspo", "token-sum"));
  const double first = std::exp(0.1), second = std::exp(-1.0);
  // Always seq-mean-token-mean: weight 1/4 each. The third is clipped at 0.8.
  CHECK_CLOSE(result.loss, (-first - 2 * first + 0.8 - second) / 4, 1e-6);
  CHECK_CLOSE(at_index(result.grad_log_probs, 1), -2 * first / 4, 1e-6);
  CHECK_CLOSE(at_index(result.grad_log_probs, 2), 0, 0);
  CHECK_CLOSE(result.metrics.at("pg_clipfrac"), 0.25, 1e-8);
}

// A sequence that has become far more likely weighs e^10 at most, and has no gradient there.
TEST(gspo_bounds_the_sequence_ratio) {
  PolicyInputs in;
  in.layout = {at::tensor(std::vector<int64_t>{0, 2}, at::kLong), at::ones({2}, at::kByte), 2, 1};
  in.old_log_probs = floats({-15, -13});
  in.log_probs = floats({-1, -3});  // 12 on average
  in.advantages = floats({-1, -1});
  const PolicyLoss result = policy_loss(in, options_for("gspo"));
  CHECK_CLOSE(result.loss, std::exp(10.0), 1e-3);
  CHECK(at::equal(result.grad_log_probs, at::zeros({2})));
}

// An importance weight of nothing is taken as 1e-10: the geometric mean has a logarithm of it.
TEST(geo_mean_takes_weights_of_zero) {
  PolicyInputs in;
  in.layout = {at::tensor(std::vector<int64_t>{0, 2}, at::kLong), at::ones({2}, at::kByte), 2, 1};
  in.old_log_probs = in.log_probs = floats({-1, -2});
  in.advantages = floats({1, 1});
  in.rollout_is_weights = floats({0, 4});
  const PolicyLoss result = policy_loss(in, options_for("geo_mean"));
  CHECK_CLOSE(result.loss, -2e-5, 1e-9);
  CHECK(at::allclose(result.grad_log_probs, floats({-1e-5f, -1e-5f}), 1e-5, 0));
}

TEST(cispo_weights_are_constants) {
  PolicyInputs in;
  in.layout = {at::tensor(std::vector<int64_t>{0, 2}, at::kLong), at::ones({2}, at::kByte), 2, 1};
  in.old_log_probs = floats({-1, -1});
  in.log_probs = floats({-0.5, -1.1f});
  in.advantages = floats({2, -3});
  const PolicyLoss result = policy_loss(in, options_for("cispo"));
  CHECK_CLOSE(at_index(result.grad_log_probs, 0), -1.3 * 2 / 2, 1e-6);
  CHECK_CLOSE(at_index(result.grad_log_probs, 1), std::exp(-0.1) * 3 / 2, 1e-6);
}

TEST(reinforce_by_hand) {
  PolicyInputs in;
  in.layout = {at::tensor(std::vector<int64_t>{0, 2, 3}, at::kLong),
               at::tensor(std::vector<uint8_t>{1, 0, 1}, at::kByte), 4, 2};
  in.log_probs = floats({-1, kNan, -3});
  in.old_log_probs = floats({-1.5, kNan, -2});
  in.advantages = floats({2, kNan, -1});
  in.rollout_is_weights = floats({0.5, kNan, 2});
  const PolicyLoss result = policy_loss(in, options_for("reinforce"));
  CHECK_CLOSE(result.loss, (2 * 1 * 0.5 - 3 * 2) / 4, 1e-7);
  CHECK(at::allclose(result.grad_log_probs, floats({-0.25, 0, 0.5}), 1e-6, 0));
  CHECK_CLOSE(result.metrics.at("ppo_kl"), (-0.5 + 1) / 2, 1e-7);
  in.rollout_is_weights = at::Tensor();
  CHECK_CLOSE(policy_loss(in, options_for("reinforce")).loss, (2 - 3) / 4.0, 1e-7);
}

// Tokens by their probabilities under the old policy and this one: a small probability that grows fivefold
// and one that grows fourfold are within the region and truncated at 3, whatever the sign of the advantage; a
// large rise with A > 0 and a large fall with A < 0 are outside (total variation 0.4; binary KL 0.37, 0.51).
TEST(divergence_ppo_by_hand) {
  PolicyInputs in;
  in.layout = {at::tensor(std::vector<int64_t>{0, 5}, at::kLong),
               at::tensor(std::vector<uint8_t>{1, 1, 1, 1, 0}, at::kByte), 4, 1};
  in.old_log_probs = floats({0.01f, 0.02f, 0.1f, 0.5f, kNan}).log();
  in.log_probs = floats({0.05f, 0.08f, 0.5f, 0.1f, kNan}).log();
  in.advantages = floats({2, -1, 1, -1, kNan});
  for (const std::string mode : {"dppo_tv", "dppo_kl"}) {
    const PolicyLoss result = policy_loss(in, options_for(mode));
    CHECK_CLOSE(result.loss, (-2 * 3 * std::log(0.05) + 3 * std::log(0.08)) / 4, 1e-6);
    CHECK(at::allclose(result.grad_log_probs, floats({-1.5, 0.75, 0, 0, 0}), 1e-6, 0));
    CHECK_CLOSE(result.metrics.at("pg_clipfrac"), 0.5, 1e-8);
    CHECK_CLOSE(result.metrics.at("pg_clipfrac_lower"), 0.5, 1e-8);
  }
}

// Covariances (A - 1)(lp + 2.5) = 4.5, -0.5, 0.5, 1.5; the masked token counts in neither mean.
PolicyInputs covariant_inputs(const std::vector<float>& log_ratios) {
  PolicyInputs in;
  in.layout = {at::tensor(std::vector<int64_t>{0, 2, 5}, at::kLong),
               at::tensor(std::vector<uint8_t>{1, 1, 0, 1, 1}, at::kByte), 4, 2};
  in.log_probs = floats({-1, -2, 9, -3, -4});
  in.old_log_probs = in.log_probs - floats({log_ratios[0], log_ratios[1], 0, log_ratios[2], log_ratios[3]});
  in.advantages = floats({4, 0, 100, 0, 0});
  return in;
}

TEST(kl_cov_penalises_the_tokens_of_highest_covariance) {
  const PolicyInputs in = covariant_inputs({0.5f, -0.2f, 0.3f, -0.4f});
  PolicyLossOptions options = options_for("kl_cov");
  options.extra = {{"kl_cov_ratio", 0.5}, {"ppo_kl_coef", 0.7}};
  const PolicyLoss two = policy_loss(in, options);
  CHECK_CLOSE(two.loss, (-4 * std::exp(0.5) + 0.7 * (0.5 + 0.4)) / 4, 1e-6);
  const float slope = static_cast<float>(-4 * std::exp(0.5)) / 4;
  CHECK(at::allclose(two.grad_log_probs, floats({slope + 0.175f, 0, 0, 0, -0.175f}), 1e-5, 1e-6));
  CHECK_CLOSE(two.metrics.at("ppo_kl"), (0.5 + 0.2 + 0.3 + 0.4) / 4, 1e-6);
  options.extra = {};  // 0.0002 of four tokens: the one token that there is at least; the coefficient is 0.1
  const PolicyLoss one = policy_loss(in, options);
  CHECK_CLOSE(one.loss, (-4 * std::exp(0.5) + 0.1 * 0.5) / 4, 1e-6);
  CHECK(at::allclose(one.grad_log_probs, floats({slope + 0.025f, 0, 0, 0, 0}), 1e-5, 1e-6));
}

TEST(clip_cov_drops_tokens_between_its_bounds) {
  // Advantages of zero have no gradient to drop: shifted by one, the covariances are the same.
  const auto inputs = [](float first_log_ratio) {
    PolicyInputs in = covariant_inputs({first_log_ratio, -0.1f, 0.1f, 0.05f});
    in.advantages -= 1;
    return in;
  };
  const auto dropped = [&](const PolicyInputs& in, double fraction, double lower, double upper) {
    PolicyLossOptions options = options_for("clip_cov");
    options.extra = {{"clip_cov_ratio", fraction}, {"clip_cov_lb", lower}, {"clip_cov_ub", upper}};
    const PolicyLoss result = policy_loss(in, options);
    const at::Tensor without = result.grad_log_probs.eq(0);
    std::string tokens;
    for (const int64_t token : {0, 1, 3, 4}) {
      if (without[token].item<bool>()) tokens += std::to_string(token);
    }
    CHECK_CLOSE(result.metrics.at("pg_clipfrac"), static_cast<double>(tokens.size()) / 4, 1e-8);
    return tokens;
  };
  const PolicyInputs in = inputs(0.1f);
  CHECK(dropped(in, 0.5, 1, 5) == "04");
  CHECK(dropped(in, 0, 1, 5) == "4");  // one of them at least, evenly spaced
  CHECK(dropped(in, 0.5, 1, 4.5) == "4");
  CHECK(dropped(in, 0.5, 1.5, 5) == "0");
  CHECK(dropped(in, 0.5, 0.25, 5) == "04");  // the outer two of three
  CHECK(dropped(in, 0.5, 5, 6) == "");
  // What the clip holds already is no candidate, and its loss stays.
  const PolicyInputs clipped = inputs(0.5f);
  PolicyLossOptions options = options_for("clip_cov");
  options.extra = {{"clip_cov_ratio", 0.5}};
  const PolicyLoss result = policy_loss(clipped, options);
  CHECK_CLOSE(result.loss, (-3 * 1.3 + std::exp(-0.1) + std::exp(0.1)) / 4, 1e-6);
  CHECK_CLOSE(result.metrics.at("pg_clipfrac"), 0.25, 1e-8);
  CHECK_CLOSE(result.metrics.at("ppo_kl"), -(0.5 - 0.1 + 0.1 + 0.05) / 4, 1e-6);
}

TEST_MAIN()
