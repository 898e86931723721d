// Attention of every row of a segment to all of its rows.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/attention.h"

namespace troupe::ops {

// qkv [T, (Q+2K)*D] with Q = K; segments without prefixes, in order, perhaps with rows between them that
// belong to none and give zeros. out [T, Q*D]; lse [Q, T] float32 (log-sum-exp of the scaled scores) is
// written when defined. softmax and sums are float32 whatever the dtype. A row's result depends on its
// segment alone, bitwise: not on what else is there, nor on the number of threads.
void full_attention_forward(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                            const at::Tensor& out, const at::Tensor& lse);

// dqkv [T, (Q+2K)*D] is fully overwritten.
void full_attention_backward(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                             const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                             const at::Tensor& dqkv);

}  // namespace troupe::ops
