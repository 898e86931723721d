// Products by group on a GPU, whose sizes the host does not know.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::kernels::cuda {

// As in kernels/grouped_gemm.h. Products of rows in bfloat16 are LibTorch's (CUTLASS) on Hopper where all
// strides are multiples of 16 bytes; everything else is ours. Sums run in one order, whatever else is in the
// batch.
at::Tensor grouped_gemm(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& starts);
void grouped_gemm_transposed(const at::Tensor& a, const at::Tensor& b, const at::Tensor& starts,
                             const at::Tensor& out);

// Our own kernel for the first, on every GPU.
void grouped_rows(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& starts,
                  const at::Tensor& y);

}  // namespace troupe::kernels::cuda
