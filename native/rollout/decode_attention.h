#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "rollout/kv_cache.h"

namespace troupe {

// The keys that one row of a decoding step sees: the prompt's, shared by its samples, then its own,
// of which the last is the row's.
struct CachedKeys {
  const KvSegment* prompt = nullptr;
  const KvSegment* own = nullptr;
  int64_t length() const { return prompt->length + own->length; }
};

// One layer of a decoding step. Row i of qkv [n, (Q+2K)*D] is at position rows[i].length() - 1: its key
// and value are stored in the cache, then its queries attend to the cached keys within the window.
// out [n, Q*D] gets the first rows.size() rows; n >= rows.size(). A row's result depends on its own
// keys and values alone, and not on the number of threads.
void decode_attention(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer,
                      const std::vector<CachedKeys>& rows, const at::Tensor& qkv, const at::Tensor& out);

// The same in LibTorch operations: for devices other than the CPU, and as the truth in tests.
void decode_attention_reference(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer,
                                const std::vector<CachedKeys>& rows, const at::Tensor& qkv,
                                const at::Tensor& out);

}  // namespace troupe
