// RMSNorm of heads with a gate behind it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::ops {

// out = weight * x / rms(x) * silu(gate), of each head of x [n, heads * D] float32, contiguous; weight [D]
// has the dtype of gate and out, both [n, heads * D] with adjacent columns. Row-local, allocates nothing.
void gated_norm_forward(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        const at::Tensor& out);
// dx [n, heads * D] float32, which may be x, and dgate are overwritten; dweight [D] float32 is added to.
void gated_norm_backward(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& gate,
                         const at::Tensor& weight, double eps, const at::Tensor& dx, const at::Tensor& dgate,
                         const at::Tensor& dweight);

}  // namespace troupe::ops
