// Products of rows in groups, each with a matrix of its own; where a group begins is known to the device
// alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// On a GPU the experts of a layer are two such products, however many there are, and the host never learns
// how many rows each of them has.
namespace troupe::ops {

// Rows starts[e] .. starts[e + 1] of the arrays below are group e's. starts [E + 1] int32 on their device,
// from 0 to the number of rows, or fewer: rows behind the last group have no meaning. Row strides are free,
// columns adjacent.

// y [S, N] of the dtype of x [S, K]: a row of x times its group's matrix of weights, a [E, K, N] view whose
// columns or whose rows are adjacent (the transposed view of weights that lie as [E, N, K]). Sums are
// float32, rounded once.
at::Tensor grouped_gemm(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& starts);

// out [E, M, N] float32 (adjacent columns, free strides otherwise) += for every group a^T b of its rows of a
// [S, M] and b [S, N]: the gradients of weights.
void grouped_gemm_transposed(const at::Tensor& a, const at::Tensor& b, const at::Tensor& starts,
                             const at::Tensor& out);

// [E, M, N] over matrices [M, N] (or vectors: [E, N]) that lie in one storage at equal distances; undefined
// where they do not.
at::Tensor stacked(const std::vector<at::Tensor>& matrices);

// Every group's product with all rows, of which its own are kept: for devices without a kernel, and as the
// truth in tests.
at::Tensor grouped_gemm_reference(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& starts);
void grouped_gemm_transposed_reference(const at::Tensor& a, const at::Tensor& b, const at::Tensor& starts,
                                       const at::Tensor& out);

}  // namespace troupe::ops
