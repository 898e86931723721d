#include "engine/policy_gradient.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/parallel.h"
#include "check.h"
#include "host_reads.h"

// The head of a vocabulary so large that its rows are computed chunk by chunk (384 rows each).

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kVocabularySize = 44'000;
constexpr int64_t kHidden = 8;

struct Head {
  int64_t tokens;
  PackedTokens packed;
  losses::PolicyInputs inputs;
  at::Tensor hidden, weight;

  explicit Head(int64_t count) : tokens(count) {
    at::manual_seed(3);
    packed.targets = at::randint(kVocabularySize, {tokens}, at::kInt);
    packed.response_offsets = {0, tokens / 3, tokens};
    inputs.layout = {at::tensor(packed.response_offsets, at::kLong), at::rand({tokens}).lt(0.8).to(at::kByte),
                     static_cast<double>(tokens), 2};
    inputs.old_log_probs = at::randn({tokens}) - 10;
    inputs.advantages = at::randn({tokens});
    inputs.ref_log_probs = inputs.old_log_probs + 0.1;
    hidden = at::randn({round_up(tokens, kRowTile), kHidden});
    weight = at::randn({kVocabularySize, kHidden});
  }

  struct Result {
    at::Tensor log_probs, d_hidden, d_weight;
    int64_t reads;
  };
  Result run(const PolicyLossOptions& options) const {
    PolicyGradient gradient(inputs, {}, packed, nullptr, options);
    Result result{{}, at::empty_like(hidden), at::zeros_like(weight), 0};
    const at::Tensor targets = at::zeros({hidden.size(0)}, at::kInt);
    targets.narrow(0, 0, tokens).copy_(packed.targets);
    result.reads =
        host_reads([&] { gradient.run({}, hidden, weight, targets, result.d_hidden, result.d_weight); });
    result.log_probs = gradient.log_probs();
    return result;
  }
};

PolicyLossOptions options_of(const std::string& mode) {
  PolicyLossOptions options;
  options.mode = parse_policy_mode(mode);
  options.use_kl_loss = true;
  options.entropy_coeff = 0.01;
  options.extra = {{"dro_beta", 0.1}};
  return options;
}

}  // namespace

TEST(a_chunk_of_the_head_does_not_wait_for_its_loss) {
  at::NoGradGuard no_grad;
  const Head one(380), three(1000);
  for (const std::string mode :
       {"vanilla", "cispo", "gpg", "sapo", "dppo_tv", "dppo_kl", "dro", "reinforce"}) {
    const auto options = options_of(mode);
    const int64_t reads = one.run(options).reads;
    CHECK(reads > 0);  // of the columns, on the host
    CHECK(three.run(options).reads == reads);
  }
}

// The gradients that the chunks ask for are those of the loss of all tokens.
TEST(chunks_have_the_gradients_of_the_whole) {
  at::NoGradGuard no_grad;
  const Head head(1000);
  const auto options = options_of("vanilla");
  const Head::Result result = head.run(options);
  losses::PolicyInputs inputs = head.inputs;
  inputs.log_probs = result.log_probs;
  inputs.entropy = at::zeros_like(result.log_probs);
  const losses::PolicyLoss loss = losses::policy_loss(inputs, options);
  const at::Tensor grad = at::zeros({head.hidden.size(0)}), entropy_grad = at::zeros({head.hidden.size(0)});
  grad.narrow(0, 0, head.tokens).copy_(loss.grad_log_probs);
  entropy_grad.narrow(0, 0, head.tokens).copy_(loss.grad_entropy);
  const auto rows = [&] { return at::empty({head.hidden.size(0)}); };
  const ops::LogProbRows out{rows(), rows(), rows(), {}};
  const at::Tensor targets = at::zeros({head.hidden.size(0)}, at::kInt);
  targets.narrow(0, 0, head.tokens).copy_(head.packed.targets);
  const at::Tensor d_hidden = at::empty_like(head.hidden), d_weight = at::zeros_like(head.weight);
  ops::linear_log_prob_backward(
      {}, head.hidden, head.weight, targets, out, true,
      [&](int64_t begin, int64_t end, const at::Tensor& g, const at::Tensor& e) {
        g.copy_(grad.narrow(0, begin, end - begin));
        e.copy_(entropy_grad.narrow(0, begin, end - begin));
      },
      d_hidden, d_weight);
  CHECK(at::equal(d_hidden, result.d_hidden));
  CHECK(at::equal(d_weight, result.d_weight));
}

TEST_MAIN()
