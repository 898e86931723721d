// An activation with trained scalars.
#pragma once

#include <ATen/core/Tensor.h>

// xIELU (Huang and Schlag 2024, arXiv:2411.13010), of x > 0 and of the others:
//   y = p x^2 + beta x                          p = softplus(alpha_p)
//   y = n (e^min(x, eps) - 1 - x) + beta x      n = beta + softplus(alpha_n)
// Row-local, as the operations of ops.h, with the same dtypes; float32 inside, but p and n are rounded to the
// dtype of the rows, as the layer of transformers has them. A NaN stays one.
//
// Legend: n rows, I columns.
namespace troupe::ops {

struct Xielu {
  at::Tensor alpha_p, alpha_n;  // [1] of the dtype of the rows
  at::Tensor beta, eps;         // [1] float32; eps < 0 keeps e^x - 1 off where it cancels
};

void xielu_forward(const Xielu& xielu, const at::Tensor& x /*[n,I]*/, const at::Tensor& out /*[n,I]*/);

// dx from dout and x, which dx may be; out, where defined, is what the forward gave. sums [n, 2] float32,
// where defined: what a row has of the gradients by p and by n.
void xielu_backward(const Xielu& xielu, const at::Tensor& dout, const at::Tensor& x, const at::Tensor& dx,
                    const at::Tensor& out, const at::Tensor& sums);

// In plain LibTorch operations: for tests (float64, too), and where no kernel fits.
namespace reference {

void xielu_forward(const Xielu& xielu, const at::Tensor& x, const at::Tensor& out);
void xielu_backward(const Xielu& xielu, const at::Tensor& dout, const at::Tensor& x, const at::Tensor& dx,
                    const at::Tensor& out, const at::Tensor& sums);

}  // namespace reference

}  // namespace troupe::ops
