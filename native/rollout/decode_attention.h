// Attention of one new token per row to its cached keys.
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

// The rows of a decoding step, for all of its layers.
class DecodeRows {
 public:
  DecodeRows(std::vector<CachedKeys> rows, const KvCache& cache);

  const std::vector<CachedKeys>& rows() const { return rows_; }
  // On a GPU, else undefined: addresses of the pages [rows, most pages of a row] int64, the prompt's first,
  // and lengths [rows, 2] int32 of the prompt and of everything.
  const at::Tensor& pages() const { return pages_; }
  const at::Tensor& lengths() const { return lengths_; }

 private:
  std::vector<CachedKeys> rows_;
  at::Tensor pages_, lengths_;
};

// One layer of a decoding step. Row i of qkv [n, (Q+2K)*D] is at position length() - 1 of its keys: its key
// and value are stored in the cache, then its queries attend to the cached keys within the window.
// out [n, Q*D] gets the first rows; n >= their number. A row's result depends on its own
// keys and values alone, and not on the number of threads.
void decode_attention(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer,
                      const DecodeRows& rows, const at::Tensor& qkv, const at::Tensor& out);

// The same in LibTorch operations: for GPUs in builds without CUDA and heads wider than its kernel takes, and
// as the truth in tests.
void decode_attention_reference(const ops::AttentionSpec& spec, const KvCache& cache, int64_t layer,
                                const std::vector<CachedKeys>& rows, const at::Tensor& qkv,
                                const at::Tensor& out);

}  // namespace troupe
