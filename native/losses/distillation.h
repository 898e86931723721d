// On-policy distillation: what the tokens of a policy are worth to a teacher.
#pragma once

#include "losses/policy_modes.h"

namespace troupe::losses {

// What forward KL over the teacher's likeliest tokens knows of a token: [n, kCount] float64.
struct TopKlRow {
  enum Column : int64_t { kLoss, kStudentMass, kTeacherMass, kOverlap, kOverlapAdvantage, kCount };
};

// sum_k q_k (log q_k - log p_k) over the teacher's top_k tokens, q the teacher's probabilities and p the
// student's, logarithms of both at least min_log_prob; with the masses of both distributions there, how many
// of these tokens are among the student's top_k likeliest, and the mean of -q_k (log q_k - log p_k) over
// those. student [n, K], differentiable, teacher [n, K], among_top [n, K] bool -> [n, kCount]; the loss alone
// has a gradient.
at::Tensor forward_kl(const DistillationOptions& options, const at::Tensor& student,
                      const at::Tensor& teacher, const at::Tensor& among_top);

// The losses of tokens as they count: not below 0 with top_k, and within max_loss. Differentiable.
at::Tensor bounded_losses(const DistillationOptions& options, const at::Tensor& losses);

// The term of the distillation from the losses [N] of its tokens, not bounded yet: their aggregate, or with
// policy_gradient the vanilla policy loss of minus them. `policy` holds the tokens' log-probs and weights.
// Without the coefficient.
struct DistillationTerm {
  at::Tensor loss;  // scalar, differentiable
  Metrics metrics;  // under verl's names; empty where policy.tokens is null
};
DistillationTerm distillation_term(const DistillationOptions& options, const at::Tensor& losses,
                                   const ModeInputs& policy);

// Metrics of forward_kl over all N > 0 tokens.
Metrics top_kl_metrics(const DistillationOptions& options, const at::Tensor& rows);

}  // namespace troupe::losses
