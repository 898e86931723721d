// The gated delta rule on a GPU.
#pragma once

#include "kernels/gated_delta_rule.h"

namespace troupe::kernels::cuda {

// Those of kernels/gated_delta_rule.h: a block of threads per sequence (or part of one with a common prefix),
// value head and kDeltaColumns columns of its state, which stay in registers, token after token. A backward
// pass has one per key head, whose value heads and columns it takes in turn, so that sums have a fixed order.
void gated_delta_forward(const ops::DeltaSpec& spec, const ops::DeltaRows& rows,
                         const ops::Segments& segments, const at::Tensor& out);
void gated_delta_backward(const ops::DeltaSpec& spec, const ops::DeltaRows& rows,
                          const ops::Segments& segments, const at::Tensor& dout,
                          const ops::DeltaRows& gradients);
void gated_delta_step(const ops::DeltaSpec& spec, const ops::DeltaRows& rows,
                      const std::vector<ops::StateRun>& runs, const at::Tensor& states,
                      const at::Tensor& out);

// Rows [row, row + count), which one block scans from a state to another: slots of `states`, -1: zeros, and
// not wanted. scratch: where its floats begin.
struct ScanItem {
  int64_t row, count, before, after, scratch;
};

// items [n] on the device, as rows of 5 int64. states [slots, Hv, Dk, Dv] with adjacent rows, slot_stride
// apart.
struct ScanLaunch {
  DeltaShape shape;
  const ScanItem* items;
  int64_t count;
  const float* x;
  const float* decay;
  const float* beta;
  float* states;
  int64_t slot_stride;
  float* out;  // null: not wanted
};
void launch_scan(const ScanLaunch& launch);

// before: of `scan.states`; after: of d_states, the gradient by the state behind the rows (-1: zero), whose
// place that by the state before them takes where it is given.
struct ScanBackwardLaunch {
  ScanLaunch scan;
  const float* dout;
  float* dx;
  float* dlog_decay;
  float* dbeta;
  float* d_states;  // contiguous
  float* scratch;
};
void launch_scan_backward(const ScanBackwardLaunch& launch);

}  // namespace troupe::kernels::cuda
