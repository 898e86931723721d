// One token for every row of logits.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "rollout/sampler.h"

namespace troupe {

// sample_token for every row of logits [rows, V] (float32, contiguous), one uniform number each. Logits on a
// GPU stay there: what comes to the host is a maximum and a sum per block, then the few blocks that hold
// candidates.
std::vector<Sampled> sample_rows(const at::Tensor& logits, const SamplerOptions& options,
                                 const std::vector<double>& uniforms);

// The way by blocks, on any device: for sample_rows and for tests.
std::vector<Sampled> sample_rows_by_blocks(const at::Tensor& logits, const SamplerOptions& options,
                                           const std::vector<double>& uniforms);

}  // namespace troupe
