// What a build with CUDA puts in the place of the CPU kernels and of LibTorch's operations.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/simulated.h"
#include "kernels/attention.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/gated_delta_rule.h"
#include "kernels/grouped_gemm.h"
#include "kernels/linear_log_prob.h"
#include "kernels/paged_attention.h"
#include "kernels/token_choices.h"

namespace troupe::kernels {

// Filled by kernels/cuda. The functions of `rows` take the arguments of their CPU counterparts, with pointers
// to device memory; all launch on the current stream of the current device (a worker sees only one) and throw
// kInternal when a launch is refused. Sums have a fixed order, so results are the same in every run. Scratch
// memory comes from LibTorch's allocator.
struct DeviceOps {
  RowKernels rows;
  // out [M, N] float32 = (accumulate ? out : 0) + a [M, K] b [K, N]; a and b both bfloat16 or both float32,
  // each with adjacent columns or adjacent rows; out with adjacent columns.
  void (*gemm)(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool accumulate);
  // As in kernels/grouped_gemm.h.
  decltype(&ops::grouped_gemm) grouped_gemm;
  decltype(&ops::grouped_gemm_transposed) grouped_gemm_transposed;
  decltype(&ops::linear_log_prob_forward) linear_log_prob_forward;
  decltype(&ops::linear_log_prob_backward) linear_log_prob_backward;
  // As ops::attention_forward and ops::attention_backward of queries, keys and values apart, for what
  // flash_attention_fits.
  void (*attention_forward)(const ops::AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                            const ops::Segments& segments, const at::Tensor& out, const at::Tensor& lse);
  void (*attention_backward)(const ops::AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                             const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                             const ops::Segments& segments, const at::Tensor& dq, const at::Tensor& dkv);
  void (*paged_attention)(const PagedAttention& task);
  void (*choose_tokens)(const TokenChoices& task);
  // As in kernels/gated_delta_rule.h.
  decltype(&ops::gated_delta_forward) gated_delta_forward;
  decltype(&ops::gated_delta_backward) gated_delta_backward;
  decltype(&ops::gated_delta_step) gated_delta_step;
};

// Null in builds without CUDA: LibTorch's operations then do.
const DeviceOps* device_ops();

// What they allocate, where meta tensors stand for a GPU's (base/simulated.h).
const DeviceOps* simulated_device_ops();

// Those for x: null where LibTorch's operations have to do.
inline const DeviceOps* device_ops_for(const at::Tensor& x) {
  if (x.is_meta() && SimulateGpu::active()) return simulated_device_ops();
  return x.is_cuda() ? device_ops() : nullptr;
}

}  // namespace troupe::kernels
