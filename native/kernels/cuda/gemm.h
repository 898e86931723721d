// Products of bfloat16 that add to float32.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::kernels::cuda {

// out [M, N] float32 = (accumulate ? out : 0) + a [M, K] b [K, N], by cuBLAS with LibTorch's handle. a and b
// both bfloat16 or both float32, each with adjacent columns or adjacent rows (a transposed view); out with
// adjacent columns. Unlike at::mm it adds bfloat16 products to a float32 matrix with every LibTorch
// from 2.11.
void gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool accumulate);

}  // namespace troupe::kernels::cuda
