// Attention in LibTorch operations: for tests, and where no kernel fits.
#pragma once

#include "kernels/attention.h"

// The same attention in plain LibTorch operations on any device (meta tensors included) and in any
// floating-point dtype (float64 in tests), for blocks of queries of one run at a time.
namespace troupe::ops {

// Scores of a block over all heads: 64 MiB in float32, of which less than four are held.
inline constexpr int64_t kMostScores = int64_t{1} << 24;

void attention_forward_reference(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                                 const Segments& segments, const at::Tensor& out, const at::Tensor& lse,
                                 int64_t most_scores = kMostScores);
void attention_backward_reference(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                                  const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                                  const Segments& segments, const at::Tensor& dq, const at::Tensor& dkv,
                                  int64_t most_scores = kMostScores);

// Of queries, keys and values side by side.
void attention_forward_reference(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                                 const at::Tensor& out, const at::Tensor& lse);
void attention_backward_reference(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                                  const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                                  const at::Tensor& dqkv);

}  // namespace troupe::ops
