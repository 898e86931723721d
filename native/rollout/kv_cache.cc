// Pages of keys and values, and copies into them.
#include "rollout/kv_cache.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/parallel.h"
#include "kernels/cpu/decode_attention_kernels.h"

namespace troupe {
namespace {

using kernels::kPagePositions;

// Moves bits, whatever they mean.
template <typename Word>
void store_words(const KvSegment& segment, int64_t head_bytes, int64_t first, int64_t rows, int64_t dim,
                 const Word* keys, const Word* values, int64_t row_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = first + row;
    char* page = static_cast<char*>(segment.pages[static_cast<size_t>(position / kPagePositions)].data_ptr());
    Word* page_keys = reinterpret_cast<Word*>(page + head_bytes) + position % kPagePositions;
    Word* page_values =
        reinterpret_cast<Word*>(page + head_bytes) + (kPagePositions + position % kPagePositions) * dim;
    const Word* key = keys + row * row_stride;
    const Word* value = values + row * row_stride;
    for (int64_t d = 0; d < dim; ++d) page_keys[d * kPagePositions] = key[d];
    std::copy(value, value + dim, page_values);
  }
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, at::ScalarType dtype, at::Device device)
    : num_layers_(config.num_layers),
      num_heads_(config.num_heads),
      num_kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      dtype_(dtype),
      device_(device) {}

int64_t KvCache::pages_for(int64_t positions) {
  return (positions + kPagePositions - 1) / kPagePositions;
}

int64_t KvCache::page_bytes() const {
  return num_layers_ * num_kv_heads_ * head_bytes(0, 1);
}

int64_t KvCache::head_bytes(int64_t layer, int64_t head) const {
  const int64_t element = static_cast<int64_t>(c10::elementSize(dtype_));
  return (layer * num_kv_heads_ + head) * 2 * head_dim_ * kPagePositions * element;
}

void KvCache::grow(KvSegment& segment, int64_t length) {
  while (static_cast<int64_t>(segment.pages.size()) < pages_for(length)) {
    if (free_pages_.empty()) {
      segment.pages.push_back(at::empty({num_layers_, num_kv_heads_, 2, head_dim_ * kPagePositions},
                                        at::TensorOptions().dtype(dtype_).device(device_)));
      ++allocated_pages_;
    } else {
      segment.pages.push_back(std::move(free_pages_.back()));
      free_pages_.pop_back();
    }
  }
  segment.length = std::max(segment.length, length);
}

void KvCache::release(KvSegment& segment) {
  for (at::Tensor& page : segment.pages) free_pages_.push_back(std::move(page));
  segment = {};
}

void KvCache::store_head(int64_t layer, int64_t head, const KvSegment& segment, int64_t first,
                         const void* qkv, int64_t n) const {
  const int64_t key_column = (num_heads_ + head) * head_dim_;
  const int64_t value_column = key_column + num_kv_heads_ * head_dim_;
  const auto move = [&](auto word) {
    using Word = decltype(word);
    const Word* rows = static_cast<const Word*>(qkv);
    store_words<Word>(segment, head_bytes(layer, head), first, n, head_dim_, rows + key_column,
                      rows + value_column, row_size());
  };
  if (c10::elementSize(dtype_) == 4) {
    move(uint32_t{});
  } else {
    move(uint16_t{});
  }
}

void KvCache::store(int64_t layer, const KvSegment& segment, int64_t first, const at::Tensor& qkv) const {
  if (device_.is_cpu()) {
    for (int64_t head = 0; head < num_kv_heads_; ++head) {
      store_head(layer, head, segment, first, qkv.const_data_ptr(), qkv.size(0));
    }
    return;
  }
  const int64_t rows = qkv.size(0);
  const at::Tensor heads = qkv.view({rows, num_heads_ + 2 * num_kv_heads_, head_dim_});
  const at::Tensor keys = heads.narrow(1, num_heads_, num_kv_heads_);
  const at::Tensor values = heads.narrow(1, num_heads_ + num_kv_heads_, num_kv_heads_);
  for (int64_t row = 0; row < rows;) {
    const int64_t slot = (first + row) % kPagePositions;
    const int64_t count = std::min(kPagePositions - slot, rows - row);
    const at::Tensor page =
        segment.pages[static_cast<size_t>((first + row) / kPagePositions)].select(0, layer);
    page.select(1, 0)
        .view({num_kv_heads_, head_dim_, kPagePositions})
        .narrow(2, slot, count)
        .copy_(keys.narrow(0, row, count).permute({1, 2, 0}));
    page.select(1, 1)
        .view({num_kv_heads_, kPagePositions, head_dim_})
        .narrow(1, slot, count)
        .copy_(values.narrow(0, row, count).permute({1, 0, 2}));
    row += count;
  }
}

}  // namespace troupe
