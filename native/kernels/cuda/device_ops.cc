#include "kernels/cuda/device_ops.h"

#include "kernels/cuda/linear_log_prob.h"

namespace troupe::kernels::cuda {

const DeviceOps* device_ops() {
  static const DeviceOps ops{
      {norm_table, rotary_table, activation_table, optim_table},
      gemm,
      linear_log_prob_forward,
      linear_log_prob_backward,
      flash_attention_fits,
      flash_attention_forward,
      flash_attention_backward,
      decode_attention,
      scan_logits,
      gather_blocks,
  };
  return &ops;
}

}  // namespace troupe::kernels::cuda
