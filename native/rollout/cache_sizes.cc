// Bytes of pages and slots.
#include "rollout/cache_sizes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "rollout/kv_cache.h"
#include "rollout/state_cache.h"

namespace troupe {

CacheSizes cache_sizes(const RolloutOptions& options, const ModelConfig& config, at::ScalarType dtype) {
  CacheSizes sizes{0, 0, options.max_sequences};
  const int64_t slot = StateCache::slot_bytes(config, dtype), page = KvCache::page_bytes(config, dtype);
  if (slot > 0) {
    const int64_t most = std::min(options.kv_cache_bytes / 2, options.kv_cache_bytes - page) / slot;
    sizes.slots = options.state_slots > 0 ? options.state_slots : std::max<int64_t>(most, 1);
    sizes.sequences = std::min(sizes.slots, options.max_sequences);
    if (options.state_slots == 0) {
      const int64_t cheap = options.prefix_caching ? options.kv_cache_bytes / 4 / slot : 0;
      sizes.slots = std::max(sizes.sequences, std::min(2 * sizes.sequences, cheap));
    }
  }
  const int64_t states = sizes.slots * slot, rest = options.kv_cache_bytes - states;
  require(rest >= page, ErrorCode::kInvalidArgument, "[rollout] the cache of keys and values has ",
          options.kv_cache_bytes, " bytes, less than one page of ", kPagePositions, " positions, ", page,
          " bytes", slot > 0 ? ", and the state of one sequence, " + std::to_string(slot) + " bytes" : "",
          ": give it more memory (gpu_memory_utilization)",
          config.latent && !config.latent->absorbed ? ", or keep latents in their place (latent_cache)" : "");
  const int64_t longest = KvCache::pages_for(options.max_positions);
  const int64_t most = std::numeric_limits<int32_t>::max();
  const int64_t running = sizes.sequences > most / longest ? most : sizes.sequences * longest;
  // Those that no sequence fills are for what the prefix cache keeps of sequences that have ended.
  const bool keeps = options.prefix_caching && page > 0;
  sizes.pages = std::min(page > 0 ? rest / page : most, keeps ? most : running);
  return sizes;
}

ModelConfig rollout_config(const RolloutOptions& options, const ModelConfig& decoder) {
  return options.latent_cache ? over_latents(decoder) : decoder;
}

ModelConfig with_layers(ModelConfig config, const std::vector<int64_t>& layers) {
  std::vector<bool> linear, second;
  for (const int64_t layer : layers) {
    if (config.shares_keys(layer)) continue;
    linear.push_back(config.is_linear_layer(layer));
    second.push_back(config.has_second_heads(layer));
  }
  config.num_layers = static_cast<int64_t>(linear.size());
  config.shared_kv_layers = 0;
  config.linear_layers = std::move(linear);
  config.second_rope_layers = std::move(second);
  return config;
}

ModelConfig with_layers(ModelConfig config, const MixerLayers& layers) {
  config.num_layers = layers.attention + layers.second + layers.linear;
  config.shared_kv_layers = 0;
  config.linear_layers.assign(static_cast<size_t>(config.num_layers), false);
  config.second_rope_layers = config.linear_layers;
  std::fill_n(config.second_rope_layers.begin() + layers.attention, layers.second, true);
  std::fill_n(config.linear_layers.begin() + layers.attention + layers.second, layers.linear, true);
  return config;
}

}  // namespace troupe
