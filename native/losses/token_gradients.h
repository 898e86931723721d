// The gradients of a token-local policy loss, part by part, where the log-probs are.
#pragma once

#include "losses/losses.h"

namespace troupe::losses {

// What policy_loss gives as grad_log_probs and grad_entropy, bit for bit, for modes that are token-local. The
// columns go to the device once; by_log_probs() is arithmetic there alone, of which the host awaits nothing.
class TokenGradients {
 public:
  // `inputs` of all N tokens, on the host; log_probs and entropy are not read. `options` must outlive this.
  TokenGradients(const PolicyInputs& inputs, const PolicyLossOptions& options, at::Device device);

  // grad [n] float32 of tokens [begin, begin + n) from their log-probs [n], both on the device; 0 at masked
  // tokens, whatever lies there.
  void by_log_probs(int64_t begin, const at::Tensor& log_probs, const at::Tensor& grad) const;
  // [N] float32 on the device, undefined unless uses_entropy.
  const at::Tensor& by_entropy() const { return by_entropy_; }

 private:
  // [n] float64, undefined where there is no such column.
  at::Tensor part(const at::Tensor& column, int64_t begin, int64_t count) const;

  const PolicyLossOptions& options_;
  double global_sequences_;
  // [N] float64 rows of one tensor, zeros at masked tokens.
  at::Tensor valid_, weights_, kl_weights_, old_log_probs_, advantages_, is_weights_, ref_log_probs_;
  at::Tensor given_values_, given_by_log_prob_;
  at::Tensor by_entropy_;
};

}  // namespace troupe::losses
