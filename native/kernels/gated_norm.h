// RMSNorm of heads with a gate behind it, or before it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::ops {

struct GatedNormSpec {
  int64_t dim = 0;  // of a head, D
  double eps = 1e-6;
  bool gate_first = false;  // the gate multiplies what goes into the norm, as in Mamba 2
};

// out = weight * x / rms(x) * silu(gate), of each head of x [n, heads * D] float32, contiguous, and weight
// [D]; with gate_first weight * y / rms(y), y = x silu(gate), and weight [heads * D]. weight has the dtype of
// gate and out, both [n, heads * D] with adjacent columns. Row-local, allocates nothing.
void gated_norm_forward(const GatedNormSpec& spec, const at::Tensor& x, const at::Tensor& gate,
                        const at::Tensor& weight, const at::Tensor& out);
// dx [n, heads * D] float32, which may be x, and dgate are overwritten; dweight float32 is added to.
void gated_norm_backward(const GatedNormSpec& spec, const at::Tensor& dout, const at::Tensor& x,
                         const at::Tensor& gate, const at::Tensor& weight, const at::Tensor& dx,
                         const at::Tensor& dgate, const at::Tensor& dweight);

}  // namespace troupe::ops
