// Memory of states, and copies within it.
#include "rollout/state_cache.h"

#include <ATen/ATen.h>

#include "base/counting_allocator.h"
#include "base/zero_pages.h"
#include "rollout/cache_budget.h"

namespace troupe {

namespace {

constexpr int64_t kFloat = static_cast<int64_t>(sizeof(float));

// Elements of one layer's state.
int64_t conv_size(const LinearAttentionConfig& linear) {
  return (kernels::kConvWidth - 1) * linear.channels();
}
int64_t rule_size(const LinearAttentionConfig& linear) {
  return linear.key_dim * linear.values();
}

}  // namespace

StateCache::StateCache(const ModelConfig& config, at::ScalarType dtype, at::Device device, int64_t slots)
    : linear_(config.linear.value_or(LinearAttentionConfig{})),
      layers_(config.linear_layers_of_all()),
      slots_(slots),
      slot_bytes_(slot_bytes(config, dtype)),
      dtype_(dtype),
      device_(device) {
  take_memory();
}

int64_t StateCache::slot_bytes(const ModelConfig& config, at::ScalarType dtype) {
  if (!config.linear) return 0;
  return config.linear_layers_of_all() *
         (conv_size(*config.linear) * static_cast<int64_t>(c10::elementSize(dtype)) +
          rule_size(*config.linear) * kFloat);
}

void StateCache::take_memory() {
  if (bytes() == 0 || rule_.defined()) return;
  const AllocateFor part(MemoryPart::kKvCache);
  const auto zeros = [&](int64_t size, at::ScalarType type) {
    const int64_t count = layers_ * slots_ * size;
    const auto options = at::TensorOptions().dtype(type).device(device_);
    return device_.is_cpu() ? zero_pages(count, options) : at::empty({count}, options);
  };
  conv_ =
      zeros(conv_size(linear_), dtype_).view({layers_, slots_, kernels::kConvWidth - 1, linear_.channels()});
  rule_ = zeros(rule_size(linear_), at::kFloat)
              .view({layers_, slots_, linear_.value_heads, linear_.key_dim, linear_.value_dim});
}

void StateCache::release_memory() {
  if (!rule_.defined()) return;
  conv_.reset();
  rule_.reset();
  return_free_memory(device_);
}

void StateCache::copy(int64_t from, int64_t to) const {
  if (!rule_.defined()) return;
  for (const at::Tensor& all : {conv_, rule_}) all.select(1, to).copy_(all.select(1, from));
}

}  // namespace troupe
