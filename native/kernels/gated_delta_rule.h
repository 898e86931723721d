// The gated delta rule (linear attention) over packed segments with common prefixes, and from kept states.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/gated_delta_kernels.h"

// Gated Delta Networks (Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, equation 10), row by row as it is
// written there: a value head keeps a state S [Dk, Dv] of its sequence, from zeros on, and each row does
//   S = decay S;  S = S + k (beta (v - S^T k))^T;  out = S^T q
// or without erasure, as Mamba 2 has it (kernels/mamba.h), S = decay S + k (beta v)^T,
// in float32, whatever the compute dtype. Value heads h of key head h / (Hv / Hk).
//
// A row's bits depend on the rows of its sequence before it alone: not on where runs are cut, how often a
// common prefix is computed, what else is packed, or on threads.
//
// Legend: T rows, Hk/Hv key/value heads, Dk/Dv their dims.
namespace troupe::ops {

using DeltaSpec = kernels::DeltaShape;

// What the rule reads: x [T, 2 Hk Dk + Hv Dv] (q and k of length one, q times Dk^-1/2; v; or without erasure
// v, k, q as they are), decay and beta [T, Hv], all float32 and contiguous. As gradients: by x, by log decay,
// by beta.
struct DeltaRows {
  at::Tensor x, decay, beta;

  static DeltaRows make(const DeltaSpec& spec, int64_t rows, const at::TensorOptions& options);
  DeltaRows rows(int64_t begin, int64_t count) const {
    return {x.narrow(0, begin, count), decay.narrow(0, begin, count), beta.narrow(0, begin, count)};
  }
};

// What a layer has per value head: decay = exp(-exp(a_log) softplus(a + dt_bias)), beta = beta_scale
// sigmoid(b).
struct DeltaGates {
  at::Tensor b, a;            // [n, Hv] with adjacent columns
  at::Tensor a_log, dt_bias;  // [Hv]
  double beta_scale = 1;
};

// From x [n, 2 Hk Dk + Hv Dv], what the convolution gave, in the compute dtype. Row-local.
void delta_inputs(const DeltaSpec& spec, const at::Tensor& x, const DeltaGates& gates, const DeltaRows& out);
// gradients: of what delta_inputs() wrote; their x becomes that of its x (float32). db and da [n, Hv] are
// overwritten, da_log and ddt_bias [Hv] float32 are added to.
void delta_inputs_backward(const DeltaSpec& spec, const at::Tensor& x, const DeltaGates& gates,
                           const DeltaRows& gradients, const at::Tensor& db, const at::Tensor& da,
                           const at::Tensor& da_log, const at::Tensor& ddt_bias);

// out [T, Hv Dv] float32; rows behind the last segment get zeros.
void gated_delta_forward(const DeltaSpec& spec, const DeltaRows& rows, const Segments& segments,
                         const at::Tensor& out);
// gradients are overwritten. States are made again from every kDeltaCheckpoint-th, so that beside them a
// thread needs 4 (T / kDeltaCheckpoint + kDeltaCheckpoint) Dk kDeltaColumns bytes.
void gated_delta_backward(const DeltaSpec& spec, const DeltaRows& rows, const Segments& segments,
                          const at::Tensor& dout, const DeltaRows& gradients);

// Rows [row, row + count) that go on from a kept state, or begin a sequence.
struct StateRun {
  int64_t row = 0, count = 0;
  int64_t slot = 0;
  bool begins = false;
};
// states [slots, Hv, Dk, Dv] float32, contiguous within a slot: those of the runs are read and replaced. out
// [n, Hv Dv] float32, only the runs' rows are written.
void gated_delta_step(const DeltaSpec& spec, const DeltaRows& rows, const std::vector<StateRun>& runs,
                      const at::Tensor& states, const at::Tensor& out);

}  // namespace troupe::ops
