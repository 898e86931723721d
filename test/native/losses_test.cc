// What all losses have in common: sums over parts, masks, gradients, terms beside the policy loss, options.
#include "losses/losses.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "check.h"
#include "host_reads.h"
#include "loss_inputs.h"
#include "losses/distillation.h"
#include "losses/token_gradients.h"

using namespace troupe;
using namespace troupe::test;

TEST(aggregations_by_hand) {
  const ResponseLayout layout = small_layout();
  const auto equals = [&](const std::string& name, std::vector<float> expected) {
    CHECK(at::allclose(aggregation_weights(layout, parse_aggregation(name), 10), floats(std::move(expected)),
                       1e-6, 0));
  };
  equals("token-mean", {0.25, 0, 0.25, 0.25, 0.25, 0});
  equals("token-sum", {1, 0, 1, 1, 1, 0});
  equals("seq-mean-token-sum", {0.25, 0, 0.25, 0.25, 0.25, 0});
  equals("seq-mean-token-mean", {0.125, 0, 0.125, 0.125, 0.125, 0});
  equals("seq-mean-token-sum-norm", {0.025f, 0, 0.025f, 0.025f, 0.025f, 0});
  CHECK_THROWS(parse_aggregation("mean"), "unknown loss aggregation 'mean'; known: token-mean");
  CHECK_THROWS(aggregation_weights(layout, Aggregation::kSeqMeanTokenSumNorm, 0), "loss scale factor");
}

// d loss / d log_prob against central differences, for the modes whose gradient is that of their
// value (the others hold a factor fixed).
TEST(gradients_match_finite_differences) {
  at::manual_seed(2);
  const double step = 1e-3;  // of float32 log-probs
  for (const std::string mode : {"vanilla", "gpg", "sapo", "geo_mean", "dro", "reinforce"}) {
    for (const std::string& aggregation : kAggregations) {
      const PolicyInputs in = random_inputs({4, 0, 6, 3});
      PolicyLossOptions options = options_for(mode, aggregation);
      options.use_kl_loss = true;
      options.kl_loss_coef = 0.3;
      options.entropy_coeff = 0.1;
      const PolicyLoss result = policy_loss(in, options);
      const auto moved = [&](int64_t i, double by) {
        PolicyInputs other = in;
        other.log_probs = in.log_probs.clone();
        other.log_probs[i] += by;
        return policy_loss(other, options).loss;
      };
      const double scale = result.grad_log_probs.abs().max().item<double>();
      for (int64_t i = 0; i < in.log_probs.size(0); ++i) {
        if (in.layout.mask[i].item<int64_t>() == 0) {
          CHECK(at_index(result.grad_log_probs, i) == 0 && at_index(result.grad_entropy, i) == 0);
          continue;
        }
        const double numeric = (moved(i, step) - moved(i, -step)) / (2 * step);
        CHECK_CLOSE(at_index(result.grad_log_probs, i), numeric, 2e-3 * scale);
      }
    }
  }
}

TEST(modes_that_need_more_than_one_token_say_so) {
  for (const std::string& mode : kModes) {
    const bool whole = mode == "gspo" || mode == "geo_mean" || mode == "kl_cov" || mode == "clip_cov";
    CHECK(is_token_local(parse_policy_mode(mode)) == !whole);
  }
  CHECK(is_token_local(PolicyMode::kLinear));
  CHECK_THROWS(parse_policy_mode("new"), "unknown policy loss 'new'");
}

// A loss given by its value and slopes at these log-probs has that value and those gradients, beside
// the entropy bonus and the KL loss.
TEST(a_given_loss_keeps_its_value_and_gradients) {
  at::manual_seed(5);
  for (const std::string& aggregation : kAggregations) {
    PolicyInputs in = random_inputs({4, 0, 6, 3});
    PolicyLossOptions options = options_for("vanilla", aggregation);
    options.use_kl_loss = true;
    options.entropy_coeff = 0.1;
    const PolicyLoss whole = policy_loss(in, options);
    options.mode = PolicyMode::kLinear;
    CHECK_THROWS(policy_loss(in, options), "linear needs a given loss");
    // Vanilla's own value and slope, computed apart.
    const at::Tensor leaf = in.log_probs.clone().requires_grad_();
    const at::Tensor ratio = (leaf - in.old_log_probs).exp();
    const at::Tensor upper = at::maximum(-in.advantages * ratio, -in.advantages * ratio.clamp(0.8, 1.3));
    const at::Tensor values =
        at::where(in.advantages.lt(0), at::minimum(-in.advantages * 3.0, upper), upper) *
        in.rollout_is_weights;
    in.given.values = values.detach();
    in.given.by_log_prob = torch::autograd::grad({values.nansum()}, {leaf})[0];
    in.rollout_is_weights = at::Tensor();
    const PolicyLoss linear = policy_loss(in, options);
    CHECK_CLOSE(linear.loss, whole.loss, 1e-6 * (1 + std::abs(whole.loss)));
    CHECK_CLOSE(linear.metrics.at("pg_loss"), whole.metrics.at("pg_loss"), 1e-6 * (1 + std::abs(whole.loss)));
    CHECK(at::allclose(linear.grad_log_probs, whole.grad_log_probs, 1e-5, 1e-7));
    CHECK(at::equal(linear.grad_entropy, whole.grad_entropy));
    in.given.by_entropy = at::ones_like(in.given.values);
    options.entropy_coeff = 0;
    const PolicyLoss sloped = policy_loss(in, options);
    CHECK(at::allclose(sloped.grad_entropy, aggregation_weights(in.layout, parse_aggregation(aggregation), 7),
                       1e-6, 0));
    in.entropy = at::Tensor();
    CHECK_THROWS(policy_loss(in, options), "expected entropy because the loss has a gradient by it");
  }
}

TEST(splits_add_up) {
  at::manual_seed(3);
  const PolicyInputs whole = random_inputs({4, 7, 2, 5, 6});
  const int64_t cut = 11;  // after two sequences
  const auto part = [&](int64_t first, int64_t last, int64_t begin, int64_t end) {
    const auto slice = [&](const at::Tensor& x) { return x.narrow(0, begin, end - begin); };
    PolicyInputs in = whole;
    in.layout.offsets = whole.layout.offsets.narrow(0, first, last - first + 1) - begin;
    in.layout.mask = slice(whole.layout.mask);
    for (at::Tensor* column : {&in.log_probs, &in.entropy, &in.old_log_probs, &in.advantages,
                               &in.ref_log_probs, &in.rollout_is_weights}) {
      *column = slice(*column);
    }
    return in;
  };
  for (const std::string& mode : kModes) {
    if (mode == "kl_cov" || mode == "clip_cov") continue;  // they rank the tokens they are given
    for (const std::string& aggregation : kAggregations) {
      PolicyLossOptions options = options_for(mode, aggregation);
      options.use_kl_loss = true;
      options.entropy_coeff = 0.1;
      const PolicyLoss all = policy_loss(whole, options);
      const PolicyLoss left = policy_loss(part(0, 2, 0, cut), options);
      const PolicyLoss right = policy_loss(part(2, 5, cut, 24), options);
      CHECK_CLOSE(left.loss + right.loss, all.loss, 1e-12 * (1 + std::abs(all.loss)));
      CHECK(at::equal(at::cat({left.grad_log_probs, right.grad_log_probs}), all.grad_log_probs));
      CHECK(at::equal(at::cat({left.grad_entropy, right.grad_entropy}), all.grad_entropy));
    }
  }
}

// The gradients of parts, in one array per micro-batch, are those of the whole, bit for bit; and forming them
// reads nothing of what has just been computed, which on a GPU would wait for it.
TEST(token_gradients_of_parts_are_those_of_the_whole_and_read_nothing) {
  at::manual_seed(6);
  for (const std::string& mode : kModes) {
    PolicyInputs in = random_inputs({4, 0, 7, 2, 5, 6});
    PolicyLossOptions options = options_for(mode);
    if (!is_token_local(parse_policy_mode(mode))) {
      CHECK_THROWS(TokenGradients(in, options, at::kCPU), mode + " needs more than one token");
      continue;
    }
    for (const std::string& aggregation : kAggregations) {
      for (const bool more : {false, true}) {
        options.aggregation = parse_aggregation(aggregation);
        options.use_kl_loss = more;
        options.entropy_coeff = more ? 0.1 : 0;
        if (!more) in.rollout_is_weights = at::Tensor();
        const PolicyLoss whole = policy_loss(in, options);
        const TokenGradients gradients(in, options, at::kCPU);
        const int64_t total = in.log_probs.size(0);
        const at::Tensor grad = at::full({total}, kNan);
        const auto form = [&](int64_t begin, int64_t end) {
          gradients.by_log_probs(begin, in.log_probs.narrow(0, begin, end - begin),
                                 grad.narrow(0, begin, end - begin));
        };
        CHECK(test::host_reads([&] {
                form(0, 5);
                form(5, 17);
                form(17, total);
              }) == 0);
        CHECK(at::equal(grad, whole.grad_log_probs));
        CHECK(gradients.by_entropy().defined() == more);
        if (more) CHECK(at::equal(gradients.by_entropy(), whole.grad_entropy));
        CHECK(test::host_reads([&] { policy_loss(in, options); }) > 0);  // or else nothing was counted
      }
    }
  }
}

TEST(every_mode_ignores_masked_positions_and_passes_infinities) {
  at::manual_seed(4);
  for (const std::string& mode : kModes) {
    PolicyInputs in = random_inputs({6, 3, 8});
    in.layout.mask[0] = 1;
    for (at::Tensor* column : {&in.log_probs, &in.old_log_probs, &in.advantages, &in.rollout_is_weights,
                               &in.entropy, &in.ref_log_probs}) {
      (*column)[0] = 0.5;
    }
    const PolicyLoss clean = policy_loss(in, options_for(mode));
    CHECK(std::isfinite(clean.loss) && clean.grad_log_probs.isfinite().all().item<bool>());
    in.advantages[0] = std::numeric_limits<float>::infinity();
    const PolicyLoss broken = policy_loss(in, options_for(mode));
    CHECK(!broken.grad_log_probs.isfinite().all().item<bool>());
  }
}

TEST(an_empty_selection_gives_zero) {
  PolicyInputs in = random_inputs({3, 2});
  in.layout.mask.zero_();
  for (const std::string& mode : kModes) {
    for (const std::string& aggregation : kAggregations) {
      const PolicyLoss result = policy_loss(in, options_for(mode, aggregation));
      CHECK(result.loss == 0 && result.grad_log_probs.eq(0).all().item<bool>());
    }
  }
}

TEST(entropy_and_kl_terms_are_separate) {
  PolicyInputs in;
  in.layout = small_layout();
  in.log_probs = floats({-1, kNan, -2, -1, -1, kNan});
  in.old_log_probs = in.log_probs.clone();
  in.advantages = at::ones({6});
  in.ref_log_probs = floats({-2, kNan, -2, -1, -1, kNan});
  in.entropy = floats({1, kNan, 2, 3, 4, kNan});
  PolicyLossOptions options = options_for("vanilla", "seq-mean-token-sum");
  options.entropy_coeff = 0.5;
  options.use_kl_loss = true;
  options.kl_loss_coef = 0.1;
  options.kl_loss_type = parse_kl_penalty("k1");
  const PolicyLoss result = policy_loss(in, options);
  CHECK_CLOSE(result.metrics.at("pg_loss"), -1, 1e-12);
  CHECK_CLOSE(result.metrics.at("entropy_loss"), 2.5, 1e-12);
  CHECK_CLOSE(result.metrics.at("entropy"), 2.5, 1e-7);
  CHECK_CLOSE(result.metrics.at("kl_loss"), 0.25, 1e-12);
  CHECK_CLOSE(result.metrics.at("kl_coef"), 0.1, 0);
  CHECK_CLOSE(result.loss, -1 - 0.5 * 2.5 + 0.1 * 0.25, 1e-12);
  CHECK_CLOSE(at_index(result.grad_entropy, 0), -0.125, 1e-8);
  CHECK_CLOSE(at_index(result.grad_log_probs, 0), -0.25 + 0.1 * 0.25, 1e-7);
}

TEST(kl_penalties) {
  const at::Tensor log_probs = floats({-30, -5, 0, 5, 30, -0.3f});
  const at::Tensor reference = floats({0, 0, 0, 0, 0, 0.2f});
  const auto value_of = [&](const std::string& type) {
    return kl_penalty(log_probs, reference, parse_kl_penalty(type));
  };
  CHECK(at::allclose(value_of("k3"), floats({10, 10, 0, 4.006738f, 10, std::exp(0.5f) - 1.5f}), 1e-6, 1e-6));
  CHECK(at::allclose(value_of("low_var_kl"), value_of("k3"), 0, 0));
  CHECK(at::allclose(value_of("kl"), log_probs - reference, 0, 0));
  CHECK(at::allclose(value_of("abs"), (log_probs - reference).abs(), 0, 0));
  CHECK(at::allclose(value_of("mse"), 0.5 * (log_probs - reference).square(), 0, 0));
  for (const std::string type : {"kl", "k1", "abs", "k2", "k3", "low_var_kl", "mse"}) {
    const at::Tensor leaf = log_probs.clone().requires_grad_();
    const at::Tensor straight = kl_penalty(leaf, reference, parse_kl_penalty(type + "+"));
    CHECK(at::allclose(straight.detach(), value_of(type), 0, 0));
    const at::Tensor gradient = torch::autograd::grad({straight.sum()}, {leaf})[0];
    CHECK(at::allclose(gradient, log_probs - reference, 1e-6, 0));
  }
  CHECK_THROWS(value_of("full"), "unknown KL penalty 'full'");
}

TEST(value_loss_by_hand) {
  ValueInputs in;
  in.layout = small_layout();
  in.predictions = floats({1, kNan, 3, 0, -1, kNan});
  in.values = floats({1, kNan, 1, 0.2f, 0, kNan});
  in.returns = floats({2, kNan, 0, 0, 1, kNan});
  ValueLossOptions options;
  options.clip_range = 0.5;
  const ValueLoss result = value_loss(in, options);
  // Squared errors: 1 | 9 (clipped value 1.5: 2.25) | 0 | 4 (clipped -0.5: 2.25).
  CHECK_CLOSE(result.loss, 0.5 * (1 + 9 + 0 + 4) / 4, 1e-7);
  CHECK_CLOSE(result.metrics.at("vf_loss"), result.loss, 0);
  CHECK_CLOSE(result.metrics.at("vf_clipfrac"), 0, 0);
  CHECK_CLOSE(result.metrics.at("vpred_mean"), 0.75, 1e-8);
  CHECK(at::allclose(result.grad_predictions, floats({-0.25, 0, 0.75, 0, -0.5, 0}), 1e-6, 0));
  in.returns = floats({2, kNan, 3, 0, -1, kNan});
  const ValueLoss clipped = value_loss(in, options);
  CHECK_CLOSE(clipped.loss, 0.5 * (1 + 2.25 + 0 + 0.25) / 4, 1e-7);
  CHECK_CLOSE(clipped.metrics.at("vf_clipfrac"), 0.5, 1e-8);
  CHECK(at::allclose(clipped.grad_predictions, floats({-0.25, 0, 0, 0, 0, 0}), 1e-6, 0));
}

TEST(sft_loss_is_the_mean_over_all_ranks) {
  ResponseLayout layout = small_layout();
  layout.global_tokens = 10;
  const SftLoss result = sft_loss(layout, floats({-1, kNan, -2, -3, -4, kNan}));
  CHECK_CLOSE(result.loss, 1.0, 1e-12);
  CHECK(at::allclose(result.grad_log_probs, floats({-0.1f, 0, -0.1f, -0.1f, -0.1f, 0}), 1e-6, 0));
}

TEST(bad_options_are_named) {
  PolicyInputs in = random_inputs({3});
  CHECK_THROWS(policy_loss(in, options_for("ppo")), "unknown policy loss 'ppo'; known: vanilla, gspo");
  PolicyLossOptions options = options_for("vanilla");
  options.clip_ratio_c = 1;
  CHECK_THROWS(policy_loss(in, options), "clip_ratio_c expected a value above 1");
  options = options_for("dro");
  options.extra.clear();
  CHECK_THROWS(policy_loss(in, options), "positive dro_beta");
  options = options_for("vanilla");
  options.use_kl_loss = true;
  in.ref_log_probs = at::Tensor();
  CHECK_THROWS(policy_loss(in, options), "expected ref_log_probs with 3 values");
}

// A micro-batch of masked tokens alone adds nothing to means over all.
TEST(without_a_token_that_counts_all_metrics_are_numbers) {
  at::manual_seed(4);
  PolicyInputs in = random_inputs({3, 2});
  in.layout.mask.zero_();
  for (const std::string& mode : kModes) {
    const PolicyLoss result = policy_loss(in, options_for(mode));
    CHECK(result.loss == 0 && result.grad_log_probs.eq(0).all().item<bool>());
    for (const auto& [name, value] : result.metrics) CHECK(std::isfinite(value));
  }
}

TEST(an_overlap_of_no_token_counts_in_no_mean) {
  DistillationOptions options;
  options.top_k = 2;
  const at::Tensor student = at::tensor({0.5, 0.25, 0.5, 0.25}, at::kDouble).log().view({2, 2});
  const at::Tensor teacher = at::tensor({0.25, 0.5, 0.25, 0.5}, at::kDouble).log().view({2, 2});
  const at::Tensor among = at::tensor({0, 0, 1, 0}, at::kInt).view({2, 2}).to(at::kBool);
  const Metrics metrics = top_kl_metrics(options, forward_kl(options, student, teacher, among));
  CHECK_CLOSE(metrics.at("distillation/overlap_ratio"), 0.25, 1e-12);
  CHECK_CLOSE(metrics.at("distillation/overlap_token_advantage"), 0.25 * std::log(2.0), 1e-12);
}

TEST_MAIN()
