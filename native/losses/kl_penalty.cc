// Estimators of the KL divergence per token.
#include <ATen/ATen.h>

#include "base/error.h"
#include "losses/losses.h"

namespace troupe::losses {

namespace {

// Estimators of KL(policy || reference) from samples of the policy (Schulman, "Approximating KL divergence",
// 2020); the clamps are verl's.
at::Tensor base_penalty(const at::Tensor& log_probs, const at::Tensor& ref_log_probs,
                        const std::string& type) {
  const at::Tensor difference = log_probs - ref_log_probs;
  if (type == "kl" || type == "k1") return difference;
  if (type == "abs") return difference.abs();
  if (type == "mse" || type == "k2") return 0.5 * difference.square();
  if (type == "low_var_kl" || type == "k3") {
    const at::Tensor reverse = (-difference).clamp(-20, 20);
    return (reverse.exp() - reverse - 1).clamp(-10, 10);
  }
  fail(ErrorCode::kInvalidArgument, "[losses] unknown KL penalty '", type,
       "'; known: kl (k1), abs, mse (k2), low_var_kl (k3), each also with '+' (the gradient of k2)");
}

}  // namespace

at::Tensor kl_penalty(const at::Tensor& log_probs, const at::Tensor& ref_log_probs, const std::string& type) {
  if (!type.ends_with('+')) return base_penalty(log_probs, ref_log_probs, type);
  const at::Tensor value = base_penalty(log_probs, ref_log_probs, type.substr(0, type.size() - 1)).detach();
  const at::Tensor k2 = base_penalty(log_probs, ref_log_probs, "k2");
  return (k2 - k2.detach()) + value;
}

}  // namespace troupe::losses
