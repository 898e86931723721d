// Passes over logits for the sampler, on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::kernels::cuda {

// As in kernels/logit_blocks.h.
void scan_logits(const at::Tensor& logits, float inv_temperature, const at::Tensor& maxima,
                 const at::Tensor& sums);
void gather_blocks(const at::Tensor& logits, const at::Tensor& index, const at::Tensor& out);

}  // namespace troupe::kernels::cuda
