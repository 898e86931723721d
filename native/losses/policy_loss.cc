// The policy loss as a whole: mode, entropy bonus and KL term added up.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "losses/aggregation.h"
#include "losses/losses.h"
#include "losses/policy_modes.h"

namespace troupe::losses {

bool uses_entropy(const PolicyLossOptions& options, const GivenLoss& given) {
  return options.entropy_coeff != 0 || given.by_entropy.defined();
}

PolicyLoss policy_loss(const PolicyInputs& inputs, const PolicyLossOptions& options) {
  const at::AutoGradMode with_grad(true);
  const ValidTokens tokens(inputs.layout);
  const at::Tensor log_probs = tokens.pick(inputs.log_probs, "log_probs").detach().requires_grad_();
  const at::Tensor is_weights = inputs.rollout_is_weights.defined()
                                    ? tokens.pick(inputs.rollout_is_weights, "rollout_is_weights")
                                    : at::Tensor();
  const auto given = [&](const at::Tensor& column, const char* name) {
    return column.defined() ? tokens.pick(column, name) : column;
  };
  const ModeInputs mode{&tokens,
                        options,
                        inputs.layout.global_sequences,
                        tokens.weights(mode_aggregation(options), options.scale_factor),
                        log_probs,
                        tokens.pick(inputs.old_log_probs, "old_log_probs"),
                        tokens.pick(inputs.advantages, "advantages"),
                        is_weights,
                        given(inputs.given.values, "given.values"),
                        given(inputs.given.by_log_prob, "given.by_log_prob")};
  const ModeLoss policy = mode_loss(options.mode, mode);
  PolicyLoss result;
  result.metrics = policy.metrics();
  result.metrics["pg_loss"] = policy.loss.item<double>();

  const at::Tensor weights = tokens.weights(options.aggregation, options.scale_factor);
  at::Tensor loss = policy.loss;
  if (inputs.entropy.defined()) {
    const at::Tensor entropy = tokens.pick(inputs.entropy, "entropy");
    const at::Tensor entropy_loss = (entropy * weights).sum();
    result.metrics["entropy"] = tokens.mean(entropy);
    result.metrics["entropy_loss"] = entropy_loss.item<double>();
    if (options.entropy_coeff != 0) loss = loss - options.entropy_coeff * entropy_loss;
    if (uses_entropy(options, inputs.given)) {
      at::Tensor slope = at::full_like(weights, -options.entropy_coeff);
      if (inputs.given.by_entropy.defined())
        slope = slope + tokens.pick(inputs.given.by_entropy, "given.by_entropy");
      result.grad_entropy = tokens.to_responses(weights * slope);
    }
  } else {
    require(!uses_entropy(options, inputs.given), ErrorCode::kInternal,
            "[losses] expected entropy because the loss has a gradient by it (entropy_coeff is ",
            options.entropy_coeff, ")");
  }
  if (options.use_kl_loss) {
    const at::Tensor reference = tokens.pick(inputs.ref_log_probs, "ref_log_probs");
    const at::Tensor kl_loss = (kl_penalty(log_probs, reference, options.kl_loss_type) * weights).sum();
    result.metrics["kl_loss"] = kl_loss.item<double>();
    result.metrics["kl_coef"] = options.kl_loss_coef;
    loss = loss + options.kl_loss_coef * kl_loss;
  }
  result.loss = loss.item<double>();
  result.metrics["loss"] = result.loss;
  result.grad_log_probs = tokens.to_responses(torch::autograd::grad({loss}, {log_probs})[0]);
  return result;
}

}  // namespace troupe::losses
