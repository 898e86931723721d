// The policy loss between the two halves of the head's backward pass.
#include "engine/policy_gradient.h"

#include <ATen/ATen.h>

#include <optional>

#include "base/upload.h"

namespace troupe {

namespace {

// The same of every array [N].
template <typename Take>
losses::PolicyInputs each_array(const losses::PolicyInputs& inputs, Take&& take) {
  const auto of = [&](const at::Tensor& column) { return column.defined() ? take(column) : column; };
  losses::PolicyInputs taken = inputs;
  taken.layout.mask = of(inputs.layout.mask);
  taken.old_log_probs = of(inputs.old_log_probs);
  taken.advantages = of(inputs.advantages);
  taken.ref_log_probs = of(inputs.ref_log_probs);
  taken.rollout_is_weights = of(inputs.rollout_is_weights);
  taken.teacher_log_probs = of(inputs.teacher_log_probs);
  taken.given = {of(inputs.given.values), of(inputs.given.by_log_prob), of(inputs.given.by_entropy)};
  return taken;
}

at::Tensor cut(const at::Tensor& column, int64_t begin, int64_t end) {
  return column.defined() ? column.narrow(0, begin, end - begin) : column;
}

// [N] -> [rows], zeros behind.
void copy_padded(const at::Tensor& source, const at::Tensor& target) {
  target.narrow(0, 0, source.size(0)).copy_(source);
  target.narrow(0, source.size(0), target.size(0) - source.size(0)).zero_();
}

}  // namespace

losses::PolicyInputs PolicyGradient::own() const {
  if (sharing_ == nullptr) return inputs_;
  losses::PolicyInputs own = each_array(
      inputs_, [&](const at::Tensor& column) { return column.index_select(0, part_.predictions); });
  own.layout.offsets = at::tensor(part_.response_offsets, at::kLong);
  return own;
}

void PolicyGradient::whole_gradients(const PolicyLossOptions& options, const ops::LogProbRows& rows,
                                     const at::Tensor& grad_log_probs, const at::Tensor& grad_entropy) const {
  const int64_t count = part_.targets.size(0);
  const auto whole = [&](const at::Tensor& column) {
    const at::Tensor own = cut(column, 0, count).cpu();
    if (sharing_ == nullptr) return own;
    const at::Tensor spread = at::zeros({inputs_.layout.mask.size(0)}, own.options());
    spread.index_copy_(0, part_.predictions, own);
    return combine_parts(*sharing_, spread, {"forward", "log-probs"});
  };
  const auto own = [&](const at::Tensor& gradient) {
    return sharing_ == nullptr ? gradient : gradient.index_select(0, part_.predictions);
  };
  losses::PolicyInputs inputs = inputs_;
  inputs.log_probs = whole(rows.log_probs);
  inputs.entropy = whole(rows.entropy);
  const losses::PolicyLoss loss = losses::policy_loss(inputs, options);
  copy_padded(upload(own(loss.grad_log_probs), grad_log_probs.device()), grad_log_probs);
  if (grad_entropy.defined())
    copy_padded(upload(own(loss.grad_entropy), grad_entropy.device()), grad_entropy);
}

void PolicyGradient::chunk_gradients(const losses::TokenGradients& tokens, const ops::LogProbRows& rows,
                                     int64_t begin, int64_t end, const at::Tensor& grad_log_probs,
                                     const at::Tensor& grad_entropy) const {
  const int64_t real = std::max<int64_t>(0, std::min(end, part_.response_offsets.back()) - begin);
  if (real < end - begin) grad_log_probs.narrow(0, real, end - begin - real).zero_();
  if (real > 0) {
    losses::TokenGradients::TopRows top;
    const bool with_top = rows.given.ids.defined();
    if (with_top)
      top = {cut(rows.given.log_probs, begin, begin + real), cut(rows.given.among_top, begin, begin + real),
             cut(rows.given.gradients, begin, begin + real), cut(distilled_, begin, begin + real)};
    tokens.by_log_probs(begin, cut(rows.log_probs, begin, begin + real), grad_log_probs.narrow(0, 0, real),
                        with_top ? &top : nullptr);
  }
  if (grad_entropy.defined())
    copy_padded(tokens.by_entropy().narrow(0, std::min(begin, tokens.by_entropy().size(0)), real),
                grad_entropy);
}

void PolicyGradient::run(const ops::LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight,
                         const at::Tensor& targets, const at::Tensor& d_hidden, const at::Tensor& d_weight) {
  const int64_t count = part_.targets.size(0);
  const auto options = hidden.options().dtype(at::kFloat);
  const auto make = [&] { return at::empty({hidden.size(0)}, options); };
  ops::LogProbRows rows{make(), make(), make(), {}};
  inputs_.layout.mask_sums = losses::mask_sums(inputs_.layout);

  at::Tensor grad, entropy_grad;  // of all rows; only where the loss needs them at once
  const bool at_once = losses::learns_from_rewards(options_) && !losses::is_token_local(options_.mode);
  const bool with_entropy = losses::uses_entropy(options_, inputs_.given);
  const bool with_top = options_.distillation && options_.distillation->top_k > 0;
  // Of a loss that needs its tokens at once a distillation with top_k is the part that does not.
  PolicyLossOptions whole = options_, by_token = options_;
  if (at_once && with_top) {
    whole.distillation.reset();
    by_token.distillation->task_rewards = false;
  }
  if (at_once) {
    ops::linear_log_prob_forward(spec, hidden, weight, targets, rows);
    grad = make();
    if (with_entropy) entropy_grad = make();
    whole_gradients(whole, rows, grad, entropy_grad);
  }
  if (with_top) {
    const int64_t k = options_.distillation->top_k, total = hidden.size(0);
    const auto tokens_of_rows = [&](at::ScalarType type) {
      return at::zeros({total, k}, options.dtype(type));
    };
    const at::Tensor ids = tokens_of_rows(at::kInt);
    ids.narrow(0, 0, count)
        .copy_(sharing_ == nullptr ? teacher_ids_ : teacher_ids_.index_select(0, part_.predictions));
    rows.given = {ids, tokens_of_rows(at::kFloat), tokens_of_rows(at::kBool), tokens_of_rows(at::kFloat)};
    distilled_ = at::zeros({total, losses::TopKlRow::kCount}, options);
  }
  std::optional<losses::TokenGradients> tokens;
  if (!at_once || with_top) tokens.emplace(own(), by_token, hidden.device());
  ops::linear_log_prob_backward(
      spec, hidden, weight, targets, rows, with_entropy,
      [&](int64_t begin, int64_t end, const at::Tensor& grad_rows, const at::Tensor& entropy_rows) {
        if (!at_once) return chunk_gradients(*tokens, rows, begin, end, grad_rows, entropy_rows);
        grad_rows.copy_(cut(grad, begin, end));
        if (entropy_rows.defined()) entropy_rows.copy_(cut(entropy_grad, begin, end));
        if (!tokens) return;
        const at::Tensor taught = at::empty_like(grad_rows);
        chunk_gradients(*tokens, rows, begin, end, taught, {});
        grad_rows.add_(taught);
      },
      d_hidden, d_weight);
  log_probs_ = cut(rows.log_probs, 0, count);
  entropy_ = cut(rows.entropy, 0, count);
  distilled_ = cut(distilled_, 0, count);
}

}  // namespace troupe
