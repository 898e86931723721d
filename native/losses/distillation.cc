// On-policy distillation: what the tokens of a policy are worth to a teacher.
#include "losses/distillation.h"

#include <ATen/ATen.h>

#include <cmath>

namespace troupe::losses {

at::Tensor forward_kl(const DistillationOptions& options, const at::Tensor& student,
                      const at::Tensor& teacher, const at::Tensor& among_top) {
  const at::Tensor student_mass = student.detach().exp().sum(1), teacher_mass = teacher.exp().sum(1);
  const bool bounded = std::isfinite(options.min_log_prob);
  const at::Tensor p = bounded ? student.clamp_min(options.min_log_prob) : student;
  const at::Tensor q = bounded ? teacher.clamp_min(options.min_log_prob) : teacher;
  const at::Tensor terms = q.exp() * (q - p);
  const at::Tensor overlap = among_top.to(at::kDouble).sum(1);
  const at::Tensor advantage = -(terms.detach() * among_top).sum(1) / overlap.clamp_min(1);
  return at::stack({terms.sum(1), student_mass, teacher_mass, overlap, advantage}, 1);
}

at::Tensor bounded_losses(const DistillationOptions& options, const at::Tensor& losses) {
  // Parts of two distributions can have a sum below 0.
  const at::Tensor positive = options.top_k > 0 ? losses.clamp_min(0) : losses;
  return std::isfinite(options.max_loss) ? positive.clamp(-options.max_loss, options.max_loss) : positive;
}

DistillationTerm distillation_term(const DistillationOptions& options, const at::Tensor& losses,
                                   const ModeInputs& policy) {
  const at::Tensor bounded = bounded_losses(options, losses);
  DistillationTerm term;
  if (policy.tokens != nullptr && policy.tokens->count() > 0) {
    const at::Tensor seen = options.top_k > 0 ? losses.detach().clamp_min(0) : losses.detach();
    term.metrics["distillation/loss_min"] = seen.min().item<double>();
    term.metrics["distillation/loss_max"] = seen.max().item<double>();
    if (options.top_k == 0) term.metrics["distillation/abs_loss"] = policy.tokens->mean(seen.abs());
  }
  if (!options.policy_gradient) {
    term.loss = (bounded * policy.weights).sum();
    return term;
  }
  PolicyLossOptions clipping;  // clip_ratio_c is the default, as verl has no key for it
  clipping.clip_ratio_low = options.clip_ratio_low;
  clipping.clip_ratio_high = options.clip_ratio_high;
  const ModeInputs inputs{policy.tokens,
                          clipping,
                          policy.global_sequences,
                          policy.weights,
                          policy.log_probs,
                          policy.old_log_probs,
                          -bounded.detach(),
                          policy.is_weights,
                          {},
                          {}};
  const ModeLoss loss = mode_loss(PolicyMode::kVanilla, inputs);
  term.loss = loss.loss;
  if (policy.tokens != nullptr)
    for (const auto& [name, value] : loss.metrics()) term.metrics["distillation/" + name] = value;
  return term;
}

Metrics top_kl_metrics(const DistillationOptions& options, const at::Tensor& rows) {
  const auto column = [&](int64_t i) { return rows.select(1, i); };
  const auto number = [](const at::Tensor& value) { return value.item<double>(); };
  const at::Tensor student = column(TopKlRow::kStudentMass), teacher = column(TopKlRow::kTeacherMass);
  const at::Tensor overlap = column(TopKlRow::kOverlap), some = overlap.gt(0);
  const double with_overlap = number(some.sum());
  const double advantage = number((column(TopKlRow::kOverlapAdvantage) * some).sum());
  return {{"distillation/student_mass", number(student.mean())},
          {"distillation/student_mass_min", number(student.min())},
          {"distillation/student_mass_max", number(student.max())},
          {"distillation/teacher_mass", number(teacher.mean())},
          {"distillation/teacher_mass_min", number(teacher.min())},
          {"distillation/teacher_mass_max", number(teacher.max())},
          {"distillation/overlap_ratio", number(overlap.mean()) / static_cast<double>(options.top_k)},
          {"distillation/overlap_token_advantage", with_overlap > 0 ? advantage / with_overlap : 0.0}};
}

}  // namespace troupe::losses
