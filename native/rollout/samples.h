// What a generation takes and gives.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troupe {

struct SamplingOptions {
  int64_t max_new_tokens = 0;
  double temperature = 1;  // 0 = greedy
  int64_t top_k = 0;       // 0 = off
  double top_p = 1;        // 1 = off
  std::vector<int64_t> stop_token_ids;
};

struct PromptBatch {
  at::Tensor tokens;            // [sum P] int32
  at::Tensor offsets;           // [B+1] int32
  int64_t n = 1;                // samples per prompt
  std::vector<uint64_t> seeds;  // [B*n], one random stream per sample, independent of the batch
};

struct GenerateResult {  // B*n samples, grouped by prompt
  at::Tensor tokens;     // [sum R] int32, the stop token included when one was sampled
  at::Tensor offsets;    // [B*n+1] int32
  at::Tensor log_probs;  // [sum R] float32: of the sampled token under the model at the sampling
                         // temperature, before top-k / top-p (temperature 0: of temperature 1)
};

}  // namespace troupe
