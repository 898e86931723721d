// How the memory of a rollout is shared between pages and states.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/decoder.h"
#include "rollout/request.h"

namespace troupe {

// pages: of keys and values; slots: sequences that may run at the same time.
struct CacheSizes {
  int64_t pages = 0, slots = 0;
};

// For a model with the heads and layers of the rank with most of them. Where layers keep states, there are as
// many slots as options.state_slots says, or half of kv_cache_bytes holds, at least one and at most
// max_sequences; pages get the rest. max_positions: resolved.
// kInvalidArgument with the numbers where not one page is left.
CacheSizes cache_sizes(const RolloutOptions& options, const ModelConfig& config, at::ScalarType dtype);

// The model with so many layers of both kinds alone.
ModelConfig with_layers(ModelConfig config, const MixerLayers& layers);

}  // namespace troupe
