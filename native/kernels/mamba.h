// What a layer of Mamba 2 computes row by row before and after its scan.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/gated_delta_rule.h"

// Mamba 2 (Dao and Gu 2024, arXiv:2405.21060, section 7): a head keeps a state S [N, P] of its sequence, from
// zeros on, and each row of x [P], of B and C [N] of the head's group and of a step does
//   S = exp(-exp(a_log) step) S + B (step x)^T;  out = S^T C + skip x
// which is the scan of kernels/gated_delta_rule.h without erasure, with q = C, k = B, v = x and beta = step.
namespace troupe::ops {

// step = max(softplus(dt + dt_bias), least).
struct MambaSteps {
  at::Tensor dt;              // [n, H] with adjacent columns
  at::Tensor a_log, dt_bias;  // [H]
  double least = 0;
};

// From x [n, H P + 2 G N], what the convolution gave of x, B and C, in the compute dtype. Row-local.
void mamba_inputs(const DeltaSpec& spec, const at::Tensor& x, const MambaSteps& steps, const DeltaRows& out);
// gradients: of what mamba_inputs() wrote, of which that by x is what it was. ddt [n, H] is overwritten,
// da_log and ddt_bias [H] float32 are added to.
void mamba_inputs_backward(const MambaSteps& steps, const DeltaRows& gradients, const at::Tensor& ddt,
                           const at::Tensor& da_log, const at::Tensor& ddt_bias);

// out [n, H P] += skip x; x: of DeltaRows; skip [H].
void mamba_skip(const DeltaSpec& spec, const at::Tensor& x, const at::Tensor& skip, const at::Tensor& out);
// dx, of the shape of x, and dskip [H] float32 are added to.
void mamba_skip_backward(const DeltaSpec& spec, const at::Tensor& x, const at::Tensor& skip,
                         const at::Tensor& dout, const at::Tensor& dx, const at::Tensor& dskip);

}  // namespace troupe::ops
