// The head on a GPU, and its passes over logits.
#pragma once

#include "kernels/linear_log_prob.h"
#include "kernels/logits_chunk.h"
#include "kernels/row_sums.h"

namespace troupe::kernels::cuda {

// ops::linear_log_prob_forward and _backward on CUDA tensors, hidden and weight both bfloat16 or both
// float32. Every GEMM for logits has the same shape whatever N is, so a row's result does not depend on N.
void linear_log_prob_forward(const ops::LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& targets, const ops::LogProbRows& out);
void linear_log_prob_backward(const ops::LogProbSpec& spec, const at::Tensor& hidden,
                              const at::Tensor& weight, const at::Tensor& targets,
                              const ops::LogProbRows& rows, bool entropy_gradient,
                              const ops::RowGradients& gradients, const at::Tensor& d_hidden,
                              const at::Tensor& d_weight);

// ---- the passes between the GEMMs, one block per row ----

// Rows of raw logits, float32, each 32-byte aligned with `stride` floats from one to the next.
struct LogitRows {
  float* data;
  int64_t rows, vocab, stride;
  float inv_temperature;
  float softcap;           // 0 = off
  const int32_t* targets;  // [rows]
  int64_t first_id;        // of the vocabulary: what the first column is
};

// Statistics [rows]; optional ones may be null. The logits stay as they are.
struct LogitStats {
  float* log_probs;
  float* lse;
  float* entropy;         // optional
  float* sum_pi_squared;  // optional
};
void logit_stats(const LogitRows& logits, const LogitStats& out);
// What the outputs are made of, where the logits are those of a shard: [rows].
void logit_sums(const LogitRows& logits, RowSums* out);
// The outputs of `rows` rows from `count` shards' sums [count, rows].
void combine_sums(const RowSums* sums, int64_t count, int64_t rows, const LogitStats& out);

// The gradient by the raw logits in their place: float32, or bfloat16 [rows, vocab] at the start of each row.
struct LogitGradients {
  const float* lse;
  const float* grad_log_probs;
  const float* entropy;       // with grad_entropy
  const float* grad_entropy;  // optional
};
void logit_gradients(const LogitRows& logits, const LogitGradients& by, bool to_bfloat16);

}  // namespace troupe::kernels::cuda
