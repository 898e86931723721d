// RMSNorm over more columns than one rank has.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/ops.h"

// Each in two parts, between which ranks that have the other columns of the rows may add up what the first
// part leaves of a row. Row-local, as the operations of ops.h, with the same dtypes; float32 inside.
//
// Legend: n rows, C columns at hand, `count` those of all ranks.
namespace troupe::ops {

// sums [n] float32: the squares of a row's columns.
void split_norm_squares(const at::Tensor& x /*[n,C]*/, const at::Tensor& sums);
// y = x rstd weight with rstd = 1 / sqrt(squares / count + eps); y may be x. spec: an RMSNorm's.
void split_norm_forward(const NormSpec& spec, const at::Tensor& x, const at::Tensor& weight /*[C]*/,
                        const at::Tensor& squares /*[n]*/, int64_t count, const at::Tensor& y);

// sums [n] float32 of dy weight x.
void split_norm_products(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& weight, const at::Tensor& sums);
// dx = rstd (dy weight - x rstd^2 products / count); dx may be dy. dweight [C] float32 is added to;
// undefined: skipped.
void split_norm_backward(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& weight, const at::Tensor& squares, const at::Tensor& products,
                         int64_t count, const at::Tensor& dx, const at::Tensor& dweight);

}  // namespace troupe::ops
