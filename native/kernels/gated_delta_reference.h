// What a layer of linear attention computes, in LibTorch operations: for GPUs, and as the truth in tests.
#pragma once

#include "kernels/causal_conv.h"
#include "kernels/gated_delta_rule.h"
#include "kernels/gated_norm.h"
#include "kernels/mamba.h"

namespace troupe::ops {

// Whether the kernels of kernels/cpu take x: float32 or bfloat16 on a CPU.
bool has_delta_kernels(const at::Tensor& x);
// Where meta tensors stand for a GPU's: what the operations below hold beside their arguments, so many arrays
// of the shape of x in float32.
void simulate_temporaries(const at::Tensor& x, int64_t count);

}  // namespace troupe::ops

// The operations of causal_conv.h, gated_delta_rule.h, gated_norm.h and mamba.h on any device, in float32 and
// bfloat16, or all of them in float64. Same arguments and contracts; temporaries are allocated, and a
// backward pass of the rule keeps the state of every row of a segment.
namespace troupe::ops::reference {

// taps [n, kConvWidth] int64, x.size(0) where there is no row.
void causal_conv_forward(const at::Tensor& x, const ConvWeight& weight, const at::Tensor& taps,
                         const at::Tensor& y);
at::Tensor causal_conv_backward(const at::Tensor& x, const ConvWeight& weight, const at::Tensor& taps,
                                const at::Tensor& dy, const at::Tensor& dx);

void delta_inputs(const DeltaSpec& spec, const at::Tensor& x, const DeltaGates& gates, const DeltaRows& out);
void delta_inputs_backward(const DeltaSpec& spec, const at::Tensor& x, const DeltaGates& gates,
                           const DeltaRows& gradients, const at::Tensor& db, const at::Tensor& da,
                           const at::Tensor& da_log, const at::Tensor& ddt_bias);
void gated_delta_forward(const DeltaSpec& spec, const DeltaRows& rows, const Segments& segments,
                         const at::Tensor& out);
void gated_delta_backward(const DeltaSpec& spec, const DeltaRows& rows, const Segments& segments,
                          const at::Tensor& dout, const DeltaRows& gradients);
void gated_delta_step(const DeltaSpec& spec, const DeltaRows& rows, const std::vector<StateRun>& runs,
                      const at::Tensor& states, const at::Tensor& out);

void gated_norm_forward(const GatedNormSpec& spec, const at::Tensor& x, const at::Tensor& gate,
                        const at::Tensor& weight, const at::Tensor& out);
void gated_norm_backward(const GatedNormSpec& spec, const at::Tensor& dout, const at::Tensor& x,
                         const at::Tensor& gate, const at::Tensor& weight, const at::Tensor& dx,
                         const at::Tensor& dgate, const at::Tensor& dweight);

void mamba_inputs(const DeltaSpec& spec, const at::Tensor& x, const MambaSteps& steps, const DeltaRows& out);
void mamba_inputs_backward(const MambaSteps& steps, const DeltaRows& gradients, const at::Tensor& ddt,
                           const at::Tensor& da_log, const at::Tensor& ddt_bias);
void mamba_skip(const DeltaSpec& spec, const at::Tensor& x, const at::Tensor& skip, const at::Tensor& out);
void mamba_skip_backward(const DeltaSpec& spec, const at::Tensor& x, const at::Tensor& skip,
                         const at::Tensor& dout, const at::Tensor& dx, const at::Tensor& dskip);

}  // namespace troupe::ops::reference
