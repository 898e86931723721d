// Estimators of the KL divergence per token.
#include <ATen/ATen.h>

#include "base/error.h"
#include "losses/losses.h"

namespace troupe::losses {

namespace {

// Estimators of KL(policy || reference) from samples of the policy (Schulman, "Approximating KL divergence",
// 2020); the clamps are verl's.
at::Tensor base_penalty(const at::Tensor& log_probs, const at::Tensor& ref_log_probs, KlEstimator estimator) {
  const at::Tensor difference = log_probs - ref_log_probs;
  switch (estimator) {
    case KlEstimator::kK1: return difference;
    case KlEstimator::kAbs: return difference.abs();
    case KlEstimator::kK2: return 0.5 * difference.square();
    case KlEstimator::kK3: {
      const at::Tensor reverse = (-difference).clamp(-20, 20);
      return (reverse.exp() - reverse - 1).clamp(-10, 10);
    }
  }
  fail(ErrorCode::kInternal, "[losses] no KL estimator ", static_cast<int>(estimator));
}

}  // namespace

at::Tensor kl_penalty(const at::Tensor& log_probs, const at::Tensor& ref_log_probs,
                      const KlPenalty& penalty) {
  const at::Tensor value = base_penalty(log_probs, ref_log_probs, penalty.value);
  if (!penalty.gradient_of_k2) return value;
  const at::Tensor k2 = base_penalty(log_probs, ref_log_probs, KlEstimator::kK2);
  return (k2 - k2.detach()) + value.detach();
}

}  // namespace troupe::losses
