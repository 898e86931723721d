// Attention on a GPU.
#pragma once

#include "kernels/attention.h"

namespace troupe::kernels::cuda {

// Packed attention by LibTorch's variable-length flash attention (Dao, "FlashAttention-2", 2023). Keys of a
// shared prefix are laid out once for every segment that follows it, and their gradients are summed in
// float32 in the order of the segments; the backward pass runs in its deterministic mode. The arguments are
// those of ops::attention_forward and ops::attention_backward.
void flash_attention_forward(const ops::AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                             const ops::Segments& segments, const at::Tensor& out, const at::Tensor& lse);
void flash_attention_backward(const ops::AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                              const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                              const ops::Segments& segments, const at::Tensor& dq, const at::Tensor& dkv);

// out row r <- the sum in float32 of the rows source[first[r]], ..., source[first[r + 1] - 1] of `copies`
// [N, C], both bfloat16 with adjacent columns. first [R + 1] and source [N] int32 on the device.
void sum_copies(const at::Tensor& copies, const at::Tensor& first, const at::Tensor& source,
                const at::Tensor& out);

}  // namespace troupe::kernels::cuda
