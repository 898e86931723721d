// Rows that an index picks: gathered with a scale, added up, multiplied with each other.
#pragma once

#include <ATen/core/Tensor.h>

// What a mixture of experts does with the rows of its tokens. float32 or bfloat16 with unit column strides,
// computed in float32 and rounded once; scales and weights float32, indices int64, both contiguous. On a CPU
// in one pass, on the thread that calls; elsewhere by LibTorch.
namespace troupe::ops {

// target [m, H] row i = scale[i] * source [n, H] row index[i]; index [m]; scale [m], undefined: 1, and the
// very bits.
void gather_rows(const at::Tensor& source, const at::Tensor& index, const at::Tensor& scale,
                 const at::Tensor& target);

// target [m, H] row i = scale[i] * source [m, H] row i.
void scale_rows(const at::Tensor& source, const at::Tensor& scale, const at::Tensor& target);

// target [m, H] row i = sum of weights[i][c] (undefined: 1) * source [n, H] row index[i][c], in the order of
// c; index, weights [m, k], k > 0.
void sum_rows(const at::Tensor& source, const at::Tensor& index, const at::Tensor& weights,
              const at::Tensor& target);

// out [m] float32, contiguous: the dot products of the rows of a and b [m, H].
void dot_rows(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out);

}  // namespace troupe::ops
