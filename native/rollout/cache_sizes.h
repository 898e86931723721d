// How the memory of a rollout is shared between pages and states.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/decoder.h"
#include "rollout/request.h"

namespace troupe {

// pages: of keys and values; slots: of states; sequences: that may run at the same time.
struct CacheSizes {
  int64_t pages = 0, slots = 0, sequences = 0;
};

// For a model with the heads and layers of the rank with most of them. Where layers keep states, a sequence
// that runs has a slot: as many run as half of kv_cache_bytes holds, at least one and at most max_sequences.
// With a prefix cache there are as many slots again for snapshots, as far as all of them take no more than a
// quarter of the bytes. options.state_slots, where it is not 0, is the number of slots instead. Pages get the
// rest; where nothing is kept of sequences that have ended, no more than those that run can fill.
// max_positions: resolved.
// kInvalidArgument with the numbers where not one page is left.
CacheSizes cache_sizes(const RolloutOptions& options, const ModelConfig& config, at::ScalarType dtype);

// A decoder's config with the heads that its attention has in a rollout: with options.latent_cache those over
// latents.
ModelConfig rollout_config(const RolloutOptions& options, const ModelConfig& decoder);

// The model as its caches see it: with these layers alone, of which those that share keys keep nothing; and
// with so many layers of each kind, in any order.
ModelConfig with_layers(ModelConfig config, const std::vector<int64_t>& layers);
ModelConfig with_layers(ModelConfig config, const MixerLayers& layers);

}  // namespace troupe
