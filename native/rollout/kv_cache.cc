// The slab, and copies into it.
#include "rollout/kv_cache.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/counting_allocator.h"
#include "base/upload.h"
#include "base/zero_pages.h"
#include "rollout/cache_budget.h"

namespace troupe {
namespace {

// Of keys and values, or of values alone.
int64_t parts_of(const ModelConfig& config) {
  return config.keys_hold_values() ? 1 : 2;
}

// Moves bits, whatever they mean. key null: it is the value.
template <typename Word>
void store_words(Word* page_head, int64_t slot, int64_t dim, const Word* key, const Word* value) {
  Word* values = page_head;
  if (key != nullptr) {
    for (int64_t d = 0; d < dim; ++d) page_head[d * kPagePositions + slot] = key[d];
    values += kPagePositions * dim;
  }
  std::copy(value, value + dim, values + slot * dim);
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, at::ScalarType dtype, at::Device device, int64_t num_pages)
    : num_layers_(config.num_layers - config.linear_layers_of_all()),
      num_heads_(config.num_heads),
      num_kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      parts_(parts_of(config)),
      num_pages_(num_pages),
      page_bytes_(page_bytes(config, dtype)),
      dtype_(dtype),
      device_(device) {
  take_memory();
}

void KvCache::take_memory() {
  if (slab_.defined()) return;
  const AllocateFor part(MemoryPart::kKvCache);
  const std::vector<int64_t> sizes{num_pages_, num_layers_, num_kv_heads_, parts_,
                                   head_dim_ * kPagePositions};
  const auto options = at::TensorOptions().dtype(dtype_).device(device_);
  slab_ = device_.is_cpu() ? zero_pages(c10::multiply_integers(sizes), options).view(sizes)
                           : at::empty(sizes, options);
  base_ = static_cast<char*>(slab_.data_ptr());
}

void KvCache::release_memory() {
  if (!slab_.defined()) return;
  slab_.reset();
  base_ = nullptr;
  // Else what comes next, gathered weights too, lies in parts of the slab's place, and the slab, which wants
  // one piece, needs a second place.
  return_free_memory(device_);
}

int64_t KvCache::pages_for(int64_t positions) {
  return (positions + kPagePositions - 1) / kPagePositions;
}

int64_t KvCache::page_bytes(const ModelConfig& config, at::ScalarType dtype) {
  return (config.num_layers - config.linear_layers_of_all()) * config.num_kv_heads * parts_of(config) *
         config.head_dim * kPagePositions * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t KvCache::head_bytes(int64_t layer, int64_t head) const {
  return (layer * num_kv_heads_ + head) * (page_bytes_ / (num_layers_ * num_kv_heads_));
}

void KvCache::store(int64_t layer, const std::vector<KvSlot>& slots, const at::Tensor& qkv, int64_t begin,
                    int64_t end) const {
  const auto move = [&](auto word) {
    using Word = decltype(word);
    const Word* rows = static_cast<const Word*>(qkv.const_data_ptr());
    for (int64_t row = begin; row < end; ++row) {
      const KvSlot at = slots[static_cast<size_t>(row)];
      const Word* key = rows + row * qkv.stride(0) + num_heads_ * head_dim_;
      for (int64_t head = 0; head < num_kv_heads_; ++head, key += head_dim_) {
        auto* const there = reinterpret_cast<Word*>(address(at.page) + head_bytes(layer, head));
        if (keys_hold_values()) {
          store_words<Word>(there, at.slot, head_dim_, nullptr, key);
        } else {
          store_words<Word>(there, at.slot, head_dim_, key, key + num_kv_heads_ * head_dim_);
        }
      }
    }
  };
  if (c10::elementSize(dtype_) == 4) {
    move(uint32_t{});
  } else {
    move(uint16_t{});
  }
}

at::Tensor KvCache::columns(const at::Tensor& qkv, int64_t part, int64_t rows) const {
  const int64_t size = num_kv_heads_ * head_dim_;
  return qkv.narrow(0, 0, rows)
      .narrow(1, num_heads_ * head_dim_ + (keys_hold_values() ? 0 : part * size), size)
      .view({rows, num_kv_heads_, head_dim_});
}

void KvCache::store(int64_t layer, const at::Tensor& pages, const at::Tensor& slots,
                    const at::Tensor& qkv) const {
  const int64_t rows = pages.size(0);
  const at::Tensor own = slab_.select(1, layer);  // [pages, K, parts, D * P]
  at::Tensor values = own.select(2, parts_ - 1).view({num_pages_, num_kv_heads_, kPagePositions, head_dim_});
  const std::optional<at::Tensor> none, page(pages), slot(slots);
  // With indices that are not adjacent the indexed dimension comes first, as in NumPy: [rows, K, D] both
  // times.
  values.index_put_({page, none, slot, none}, columns(qkv, 1, rows));
  if (keys_hold_values()) return;
  at::Tensor keys = own.select(2, 0).view({num_pages_, num_kv_heads_, head_dim_, kPagePositions});
  keys.index_put_({page, none, none, slot}, columns(qkv, 0, rows));
}

void KvCache::copy_page(int64_t from, int64_t to) const {
  slab_.select(0, to).copy_(slab_.select(0, from));
}

at::Tensor KvCache::gather(int64_t layer, int64_t part, const std::vector<int32_t>& pages) const {
  const int64_t count = static_cast<int64_t>(pages.size());
  const at::Tensor index = upload(at::tensor(pages, at::kInt).to(at::kLong), device_);
  const int64_t kept = keys_hold_values() ? 0 : part;
  const at::Tensor own = slab_.select(1, layer).select(2, kept).index_select(0, index);  // [n, K, D * P]
  const at::Tensor positions =
      kept == 0 && !keys_hold_values()
          ? own.view({count, num_kv_heads_, head_dim_, kPagePositions}).transpose(2, 3)
          : own.view({count, num_kv_heads_, kPagePositions, head_dim_});
  return positions.transpose(0, 1).reshape({num_kv_heads_, count * kPagePositions, head_dim_});
}

}  // namespace troupe
