// The layout of pages of keys and values, and what one step on them takes where a device does it in one
// launch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::kernels {

// Positions per page. One head's part of a page is K transposed [D, kPagePositions], then V
// [kPagePositions, D]: the scores of a page's keys are then D multiply-adds over whole vectors, with
// no sum across lanes. Where keys hold the values (attention over latents) it is V alone.
constexpr int64_t kPagePositions = 32;

// One layer of a step on paged keys and values (rollout/kv_cache.h), all rows in one launch; every row is one
// query of a sequence, and the last of the keys that it sees is its own.
struct PagedAttention {
  at::Tensor qkv;  // [>= rows, (Q+2K)*D], or (Q+K)*D, float32 or bfloat16, rows contiguous
  at::Tensor out;  // [>= rows, Q*D]
  // [sequences, max pages] int64: addresses; page i holds positions from i * kPagePositions
  at::Tensor pages;
  at::Tensor queries;   // [rows, 2] int32: sequence, positions in all
  int64_t layer_bytes;  // from the start of a page to the layer's first head
  int64_t num_heads, num_kv_heads, head_dim;
  bool keys_hold_values;
  int64_t window;         // 0 = everything
  float scale, softcap;   // softcap 0 = off
  at::Tensor sinks = {};  // [Q] float32 (kernels/attention_sinks.h); undefined: none
};

constexpr int64_t kMaxPagedHeadDim = 576;  // of attention over the latents of DeepSeek-V3

}  // namespace troupe::kernels
