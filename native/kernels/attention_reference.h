// Attention in LibTorch operations: for tests, and where no kernel fits.
#pragma once

#include "kernels/attention.h"

// The same attention in plain LibTorch operations, run by run of queries, on any device and in any
// floating-point dtype (float64 in tests).
namespace troupe::ops {

void attention_forward_reference(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                                 const Segments& segments, const at::Tensor& out, const at::Tensor& lse);
void attention_backward_reference(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                                  const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                                  const Segments& segments, const at::Tensor& dq, const at::Tensor& dkv);

// Of queries, keys and values side by side.
void attention_forward_reference(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                                 const at::Tensor& out, const at::Tensor& lse);
void attention_backward_reference(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                                  const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                                  const at::Tensor& dqkv);

}  // namespace troupe::ops
