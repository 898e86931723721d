// Which experts the positions in pages went to, beside their keys and values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "batch/routed_experts.h"
#include "rollout/kv_cache.h"

namespace troupe {

// As keys and values do, choices stay with a page for whichever sequence takes it over. On the host; memory
// is taken page by page.
class RoutingPages {
 public:
  explicit RoutingPages(const RoutingShape& shape) : shape_(shape) {}

  // For a step to fill: zeros [rows, width].
  at::Tensor rows(int64_t count, at::Device device) const;
  // The rows of a step, at their slots.
  void store(const std::vector<KvSlot>& slots, const at::Tensor& rows);
  void copy_page(int64_t from, int64_t to);
  // Positions [0, count) of a sequence with these pages: [count * row_bytes].
  std::vector<uint8_t> read(const std::vector<int32_t>& pages, int64_t count) const;
  void release_memory() { pages_.clear(); }

 private:
  size_t row_bytes() const { return static_cast<size_t>(shape_.row_bytes()); }
  std::vector<uint8_t>& page(int64_t index);

  RoutingShape shape_;
  std::vector<std::vector<uint8_t>> pages_;
};

}  // namespace troupe
