// The logits that exist at a time on a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

namespace troupe::kernels {

// Floats from one row of logits to the next: the passes read rows from 32-byte boundaries.
constexpr int64_t logits_stride(int64_t vocab) {
  constexpr int64_t kAlignment = 8;
  return (vocab + kAlignment - 1) / kAlignment * kAlignment;
}
// Rows whose logits exist at a time, for so many ids (of the widest shard): at most 512 MiB of them.
constexpr int64_t logits_rows(int64_t vocab) {
  constexpr int64_t kBudget = int64_t{512} << 20, kMultiple = 128, kMost = 2048;
  const int64_t fitting = kBudget / (logits_stride(vocab) * static_cast<int64_t>(sizeof(float)));
  return std::clamp(fitting / kMultiple * kMultiple, kMultiple, kMost);
}

}  // namespace troupe::kernels
