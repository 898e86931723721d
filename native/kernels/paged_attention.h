// What one decoding step on paged keys and values takes, where a device does it in one launch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::kernels {

// One layer of a decoding step on paged keys and values (rollout/kv_cache.h), all rows in one launch.
struct PagedAttention {
  at::Tensor qkv;       // [>= rows, (Q+2K)*D] float32 or bfloat16, rows contiguous
  at::Tensor out;       // [>= rows, Q*D]
  at::Tensor pages;     // [rows, max pages] int64: addresses, the prompt's pages first
  at::Tensor lengths;   // [rows, 2] int32: positions of the prompt, positions in all
  int64_t layer_bytes;  // from the start of a page to the layer's first head
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t window;        // 0 = everything
  float scale, softcap;  // softcap 0 = off
};

constexpr int64_t kMaxPagedHeadDim = 256;

}  // namespace troupe::kernels
