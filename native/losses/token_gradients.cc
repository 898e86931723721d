// A token-local loss and its gradient by autograd on the device of the log-probs.
#include "losses/token_gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "base/upload.h"
#include "losses/aggregation.h"
#include "losses/distillation.h"
#include "losses/policy_modes.h"

namespace troupe::losses {

TokenGradients::TokenGradients(const PolicyInputs& inputs, const PolicyLossOptions& options,
                               at::Device device)
    : options_(options), global_sequences_(inputs.layout.global_sequences) {
  require(is_token_local(options.mode) || !learns_from_rewards(options), ErrorCode::kInternal, "[losses] ",
          name_of(options.mode), " needs more than one token at a time");
  const ValidTokens tokens(inputs.layout);
  const at::Tensor entropy_weights = tokens.weights(options.aggregation, options.scale_factor);
  std::vector<at::Tensor*> targets;
  std::vector<at::Tensor> rows;
  const auto add = [&](at::Tensor& target, const at::Tensor& values) {
    targets.push_back(&target);
    rows.push_back(tokens.place(values));
  };
  const auto pick = [&](at::Tensor& target, const at::Tensor& column, const char* name) {
    if (column.defined()) add(target, tokens.pick(column, name));
  };
  add(valid_, at::ones({tokens.count()}, at::kDouble));
  add(weights_, tokens.weights(mode_aggregation(options), options.scale_factor));
  add(old_log_probs_, tokens.pick(inputs.old_log_probs, "old_log_probs"));
  add(advantages_, tokens.pick(inputs.advantages, "advantages"));
  pick(is_weights_, inputs.rollout_is_weights, "rollout_is_weights");
  pick(given_values_, inputs.given.values, "given.values");
  pick(given_by_log_prob_, inputs.given.by_log_prob, "given.by_log_prob");
  if (options.use_kl_loss || options.distillation) add(token_weights_, entropy_weights);
  if (options.use_kl_loss) add(ref_log_probs_, tokens.pick(inputs.ref_log_probs, "ref_log_probs"));
  if (options.distillation) {
    const at::Tensor mask = inputs.layout.mask.reshape({-1, 1}).ne(0);
    teacher_ = upload(at::where(mask, inputs.teacher_log_probs.to(at::kDouble), 0.0), device);
  }
  const at::Tensor all = upload(at::stack(rows), device);
  for (size_t i = 0; i < targets.size(); ++i) *targets[i] = all[static_cast<int64_t>(i)];
  if (!uses_entropy(options, inputs.given)) return;
  at::Tensor slope = at::full_like(entropy_weights, -options.entropy_coeff);
  if (inputs.given.by_entropy.defined())
    slope = slope + tokens.pick(inputs.given.by_entropy, "given.by_entropy");
  by_entropy_ = upload(tokens.to_responses(entropy_weights * slope), device);
}

at::Tensor TokenGradients::part(const at::Tensor& column, int64_t begin, int64_t count) const {
  return column.defined() ? column.narrow(0, begin, count) : column;
}

void TokenGradients::by_log_probs(int64_t begin, const at::Tensor& log_probs, const at::Tensor& grad,
                                  const TopRows* top) const {
  const at::AutoGradMode with_grad(true);
  const int64_t count = log_probs.size(0);
  const auto of = [&](const at::Tensor& column) { return part(column, begin, count); };
  const at::Tensor valid = of(valid_).ne(0);
  const at::Tensor current = at::where(valid, log_probs.to(at::kDouble), 0.0).detach().requires_grad_();
  const ModeInputs inputs{
      nullptr,         options_,        global_sequences_, of(weights_),          current, of(old_log_probs_),
      of(advantages_), of(is_weights_), of(given_values_), of(given_by_log_prob_)};
  std::vector<at::Tensor> by{current};
  at::Tensor loss = at::zeros({}, current.options());
  if (learns_from_rewards(options_)) {
    loss = mode_loss(options_.mode, inputs).loss;
    if (options_.use_kl_loss) {
      const at::Tensor kl = kl_penalty(current, of(ref_log_probs_), options_.kl_loss_type);
      loss = loss + options_.kl_loss_coef * (kl * of(token_weights_)).sum();
    }
  }
  if (options_.distillation) {
    const DistillationOptions& distillation = *options_.distillation;
    const at::Tensor teacher = of(teacher_);
    at::Tensor losses;
    if (top != nullptr) {
      by.push_back(
          at::where(valid.unsqueeze(1), top->log_probs.to(at::kDouble), 0.0).detach().requires_grad_());
      const at::Tensor rows = forward_kl(distillation, by[1], teacher, top->among_top);
      top->distilled.copy_(rows.detach());
      losses = rows.select(1, TopKlRow::kLoss);
    } else {
      losses = kl_penalty(current, teacher.select(1, 0), {distillation.estimator});
    }
    const ModeInputs taught{nullptr,
                            options_,
                            global_sequences_,
                            of(token_weights_),
                            current,
                            of(old_log_probs_),
                            {},
                            of(is_weights_),
                            {},
                            {}};
    loss = loss + distillation_term(distillation, losses, taught).loss * distillation.coef;
  }
  const auto gradients = torch::autograd::grad({loss}, by, {}, {}, false, /*allow_unused=*/true);
  const auto write = [&](const at::Tensor& target, const at::Tensor& gradient, const at::Tensor& where) {
    if (!gradient.defined()) return target.zero_();
    return target.copy_(at::where(where, gradient, 0.0).detach());
  };
  write(grad, gradients[0], valid);
  if (top != nullptr) write(top->gradients, gradients[1], valid.unsqueeze(1));
}

}  // namespace troupe::losses
