// The losses: value, gradient by log-prob and metrics.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "base/metrics.h"
#include "losses/loss_options.h"

// The losses, written once, on per-token arrays over the whole local part of a mini-batch. They
// return the value, the gradient by log-prob (and entropy / value) and the metrics; the engine
// back-propagates those gradients through the head and the decoder.
namespace troupe::losses {

// Ragged response arrays of one mini-batch: sequence i is [offsets[i], offsets[i+1]).
struct ResponseLayout {
  at::Tensor offsets;         // [b+1] int64, on the CPU
  at::Tensor mask;            // [sum R] uint8
  double global_tokens;       // divisor of token-mean: sum of the mask over the global mini-batch
  double global_sequences;    // divisor of seq-mean-*: sequences of the global mini-batch
  at::Tensor mask_sums = {};  // [b] float64, or undefined: sums of the mask over each whole sequence, where
                              // this layout holds only parts of them
};

// [b] float64: valid tokens of each sequence.
at::Tensor mask_sums(const ResponseLayout& layout);

// Weight [sum R] float32 (double inside) of each token in an aggregation, so that
// aggregate(x) = sum(x * weight): the masked sum and the division by the global count in one array.
// token-mean | token-sum | seq-mean-token-sum | seq-mean-token-mean | seq-mean-token-sum-norm.
// seq-mean-token-mean divides each sequence by (its mask sum + 1e-8). kInvalidArgument where a divisor is not
// positive.
at::Tensor aggregation_weights(const ResponseLayout& layout, Aggregation aggregation, double scale_factor);

struct PolicyInputs {
  ResponseLayout layout;
  at::Tensor log_probs;               // [sum R] float32, current policy
  at::Tensor entropy;                 // [sum R] float32 or undefined
  at::Tensor old_log_probs;           // [sum R]
  at::Tensor advantages;              // [sum R]
  at::Tensor ref_log_probs;           // [sum R] or undefined
  at::Tensor rollout_is_weights;      // [sum R] or undefined
  GivenLoss given;                    // [sum R] each, or undefined
  at::Tensor teacher_log_probs = {};  // [sum R, 1] or [sum R, top_k], with a distillation
  at::Tensor distilled = {};          // [sum R, TopKlRow::kCount], of policy_loss with top_k
};

struct PolicyLoss {
  // pg_loss - entropy_coeff * entropy_loss + kl_loss_coef * kl_loss, and the distillation beside it or in its
  // place
  double loss = 0;
  at::Tensor grad_log_probs;  // [sum R] float32: d loss / d log_prob
  at::Tensor grad_entropy;    // [sum R] float32, undefined unless uses_entropy
  Metrics metrics;  // pg_loss, pg_clipfrac, pg_clipfrac_lower, ppo_kl, entropy (token mean), entropy_loss,
                    // kl_loss, kl_coef, loss, distillation/*
};
// With top_k the distillation has no gradient here, whose part needs the log-probs of other tokens.
PolicyLoss policy_loss(const PolicyInputs& inputs, const PolicyLossOptions& options);

// Whether the loss has a gradient by the entropies.
bool uses_entropy(const PolicyLossOptions& options, const GivenLoss& given);

// Whether the policy's own loss is minimised.
inline bool learns_from_rewards(const PolicyLossOptions& options) {
  return !options.distillation || options.distillation->task_rewards;
}

// Whether a mode's loss is a sum of terms of one token each (given counts and mask_sums), so that it can
// be computed on any part of a sequence.
bool is_token_local(PolicyMode mode);

// Per token, differentiable by log_probs (LibTorch autograd).
at::Tensor kl_penalty(const at::Tensor& log_probs, const at::Tensor& ref_log_probs, const KlPenalty& penalty);

struct ValueInputs {
  ResponseLayout layout;
  at::Tensor predictions;  // [sum R] float32
  at::Tensor values;       // [sum R] old values
  at::Tensor returns;      // [sum R]
};
struct ValueLoss {
  double loss = 0;
  at::Tensor grad_predictions;  // [sum R] float32
  Metrics metrics;              // vf_loss, vf_clipfrac, vpred_mean, loss
};
ValueLoss value_loss(const ValueInputs& inputs, const ValueLossOptions& options);

struct SftLoss {
  double loss = 0;
  at::Tensor grad_log_probs;  // [sum R] float32
  Metrics metrics;            // loss, token_accuracy is not known here
};
// Token-mean negative log-likelihood over the global number of loss tokens.
SftLoss sft_loss(const ResponseLayout& layout, const at::Tensor& log_probs);

}  // namespace troupe::losses
