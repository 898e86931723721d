// The table through which the rest of the core reaches the CUDA kernels.
#include "kernels/device_ops.h"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/gated_delta_rule.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/linear_log_prob.h"
#include "kernels/cuda/tables.h"
#include "kernels/cuda/token_choices.h"

namespace troupe::kernels {

const DeviceOps* device_ops() {
  static const DeviceOps ops{
      {cuda::norm_table, cuda::rotary_table, cuda::activation_table, cuda::optim_table,
       cuda::split_norm_table, cuda::xielu_table},
      cuda::gemm,
      cuda::grouped_gemm,
      cuda::grouped_gemm_transposed,
      cuda::linear_log_prob_forward,
      cuda::linear_log_prob_backward,
      cuda::flash_attention_forward,
      cuda::flash_attention_backward,
      cuda::decode_attention,
      cuda::choose_tokens,
      cuda::gated_delta_forward,
      cuda::gated_delta_backward,
      cuda::gated_delta_step,
  };
  return &ops;
}

}  // namespace troupe::kernels
