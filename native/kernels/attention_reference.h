// Attention in LibTorch operations: for tests, and where no kernel fits.
#pragma once

#include "kernels/attention.h"

// The same attention in plain LibTorch operations, segment by segment, on any device and in any
// floating-point dtype (float64 in tests).
namespace troupe::ops {

void attention_forward_reference(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                                 const at::Tensor& out, const at::Tensor& lse);
void attention_backward_reference(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                                  const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                                  const at::Tensor& dqkv);

}  // namespace troupe::ops
