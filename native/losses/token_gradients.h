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

  // Of a distillation with top_k: the student's log-probs [n, K] of the teacher's tokens, which of these are
  // among its own K likeliest, and what comes of them: gradients [n, K] float32, and rows
  // [n, TopKlRow::kCount] float32 for the metrics.
  struct TopRows {
    at::Tensor log_probs, among_top, gradients, distilled;
  };

  // grad [n] float32 of tokens [begin, begin + n) from their log-probs [n], both on the device; 0 at masked
  // tokens, whatever lies there. `top`: with top_k.
  void by_log_probs(int64_t begin, const at::Tensor& log_probs, const at::Tensor& grad,
                    const TopRows* top = nullptr) const;
  // [N] float32 on the device, undefined unless uses_entropy.
  const at::Tensor& by_entropy() const { return by_entropy_; }

 private:
  // [n] float64, undefined where there is no such column.
  at::Tensor part(const at::Tensor& column, int64_t begin, int64_t count) const;

  const PolicyLossOptions& options_;
  double global_sequences_;
  // [N] float64 rows of one tensor, zeros at masked tokens.
  at::Tensor valid_, weights_, token_weights_, old_log_probs_, advantages_, is_weights_, ref_log_probs_;
  at::Tensor given_values_, given_by_log_prob_;
  at::Tensor by_entropy_;
  at::Tensor teacher_;  // [N, K]; masked tokens too, zeros there
};

}  // namespace troupe::losses
