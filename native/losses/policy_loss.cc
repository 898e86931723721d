// The policy loss as a whole: mode, entropy bonus and KL term added up.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "losses/aggregation.h"
#include "losses/distillation.h"
#include "losses/losses.h"
#include "losses/policy_modes.h"

namespace troupe::losses {

bool uses_entropy(const PolicyLossOptions& options, const GivenLoss& given) {
  return learns_from_rewards(options) && (options.entropy_coeff != 0 || given.by_entropy.defined());
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
  PolicyLoss result;
  at::Tensor loss = at::zeros({}, at::kDouble);
  const auto& distillation = options.distillation;
  // verl reports the policy's own loss where it has computed it.
  const bool reported = learns_from_rewards(options) || distillation->policy_gradient;
  if (reported) {
    const ModeLoss policy = mode_loss(options.mode, mode);
    result.metrics = policy.metrics();
    result.metrics["pg_loss"] = policy.loss.item<double>();
    loss = policy.loss;
  }

  const at::Tensor weights = tokens.weights(options.aggregation, options.scale_factor);
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
  if (options.use_kl_loss && reported) {
    const at::Tensor reference = tokens.pick(inputs.ref_log_probs, "ref_log_probs");
    const at::Tensor kl_loss = (kl_penalty(log_probs, reference, options.kl_loss_type) * weights).sum();
    result.metrics["kl_loss"] = kl_loss.item<double>();
    result.metrics["kl_coef"] = options.kl_loss_coef;
    loss = loss + options.kl_loss_coef * kl_loss;
  }
  if (distillation) {
    const at::Tensor column = tokens.pick_rows(inputs.teacher_log_probs, "teacher_log_probs");
    const bool by_top = distillation->top_k > 0;
    const at::Tensor rows = by_top ? tokens.pick_rows(inputs.distilled, "distilled") : at::Tensor();
    const at::Tensor losses = by_top ? rows.select(1, TopKlRow::kLoss)
                                     : kl_penalty(log_probs, column.select(1, 0), {distillation->estimator});
    const ModeInputs taught{
        &tokens, options, mode.global_sequences, weights, log_probs, mode.old_log_probs, {}, is_weights,
        {},      {}};
    const DistillationTerm term = distillation_term(*distillation, losses, taught);
    result.metrics.insert(term.metrics.begin(), term.metrics.end());
    if (by_top && tokens.count() > 0) result.metrics.merge(top_kl_metrics(*distillation, rows));
    result.metrics["distillation/loss"] = term.loss.item<double>();
    const at::Tensor taught_loss = term.loss * distillation->coef;
    loss = distillation->task_rewards ? loss + taught_loss : taught_loss;
  }
  result.loss = loss.item<double>();
  result.metrics["loss"] = result.loss;
  result.grad_log_probs = tokens.to_responses(
      loss.requires_grad() ? torch::autograd::grad({loss}, {log_probs})[0] : at::zeros_like(log_probs));
  return result;
}

}  // namespace troupe::losses
