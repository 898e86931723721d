// Sequences as they come from the caller: ragged, one after another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "batch/images.h"

namespace troupe {

struct TokenBatch {
  at::Tensor tokens;       // [sum L] int32
  at::Tensor seq_offsets;  // [B+1] int32
  at::Tensor prompt_lens;  // [B] int32; R_i = L_i - prompt_lens_i
  // Which experts the routers of a mixture are to choose (batch/routed_experts.h): [sum L * row_bytes] uint8,
  // on all ranks that share experts or on none; undefined: those that they find the likeliest.
  at::Tensor routed_experts = {};
  ImageBatch images = {};  // of prompts; responses have none, whatever their tokens
  int64_t size() const { return prompt_lens.defined() ? prompt_lens.size(0) : 0; }
};

}  // namespace troupe
