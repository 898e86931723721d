#pragma once

#include "kernels/cpu/row_kernels.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/sampling.h"
#include "kernels/linear_log_prob.h"

namespace troupe::kernels::cuda {

// What a build with CUDA computes with its own kernels on CUDA tensors. The functions take the arguments of
// their CPU counterparts, with pointers to device memory, and launch on the current stream of the current
// device (a worker sees only one); they throw kInternal when a launch is refused. Sums have a fixed order, so
// results are the same in every run. Scratch memory comes from LibTorch's allocator.
struct DeviceOps {
  RowKernels rows;
  decltype(&cuda::gemm) gemm;
  decltype(&ops::linear_log_prob_forward) linear_log_prob_forward;
  decltype(&ops::linear_log_prob_backward) linear_log_prob_backward;
  decltype(&flash_attention_fits) attention_fits;
  decltype(&ops::attention_forward) attention_forward;
  decltype(&ops::attention_backward) attention_backward;
  decltype(&cuda::decode_attention) decode_attention;
  decltype(&cuda::scan_logits) scan_logits;
  decltype(&cuda::gather_blocks) gather_blocks;
};

#if TROUPE_CUDA
const DeviceOps* device_ops();

extern const NormKernels norm_table;
extern const RotaryKernels rotary_table;
extern const ActivationKernels activation_table;
extern const OptimKernels optim_table;
#else
// Null in builds without CUDA: LibTorch's operations then do.
inline const DeviceOps* device_ops() {
  return nullptr;
}
#endif

// Those for x: null where LibTorch's operations have to do.
inline const DeviceOps* device_ops_for(const at::Tensor& x) {
  return x.is_cuda() ? device_ops() : nullptr;
}

}  // namespace troupe::kernels::cuda
