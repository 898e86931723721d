// Low-rank adapters on linear layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/gemm.h"

namespace troupe {

// A low-rank adapter (LoRA; Hu et al. 2021, arXiv:2106.09685, section 4.1) on `rows` outputs of a linear
// layer, from `row` on:
//   y[:, row : row + rows] += scale (x A^T) B^T,  A [r, in], B [rows, r].
// Nothing of the size of the layer's weight is formed. Legend: n rows of x.
struct Adapter {
  at::Tensor a, b;            // compute dtype
  at::Tensor a_grad, b_grad;  // float32; undefined for inference
  int64_t row = 0;
  int64_t rows = 0;
  double scale = 1;

  // A and B as operands of a pass over many tiles of rows.
  struct Packed {
    ops::PackedMatrix a, b;
  };
  Packed pack_forward() const;
  Packed pack_backward() const;

  // Adds to y [n, out]. packed: null for a few rows, which read A and B as they lie.
  void forward(const at::Tensor& x, const at::Tensor& y, const Packed* packed) const;
  // dx [n, in] += scale (dy B) A, dy [n, out].
  void backward_input(const at::Tensor& dy, const at::Tensor& dx, const Packed& packed) const;
  // dB += scale dy^T (x A^T), dA += scale (dy B)^T x; packed_x: x [n, in] as a right operand.
  void accumulate_grad(const at::Tensor& dy, const at::Tensor& x, const ops::PackedMatrix& packed_x) const;
};

}  // namespace troupe
