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

// Moves bits, whatever they mean.
template <typename Word>
void store_words(char* page_head, int64_t slot, int64_t dim, const Word* key, const Word* value) {
  Word* keys = reinterpret_cast<Word*>(page_head);
  for (int64_t d = 0; d < dim; ++d) keys[d * kPagePositions + slot] = key[d];
  std::copy(value, value + dim, keys + (kPagePositions + slot) * dim);
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, at::ScalarType dtype, at::Device device, int64_t num_pages)
    : num_layers_(config.num_layers - config.delta_layers_of_all()),
      num_heads_(config.num_heads),
      num_kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      num_pages_(num_pages),
      page_bytes_(page_bytes(config, dtype)),
      dtype_(dtype),
      device_(device) {
  take_memory();
}

void KvCache::take_memory() {
  if (slab_.defined()) return;
  const AllocateFor part(MemoryPart::kKvCache);
  const std::vector<int64_t> sizes{num_pages_, num_layers_, num_kv_heads_, 2, head_dim_ * kPagePositions};
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
  return (config.num_layers - config.delta_layers_of_all()) * config.num_kv_heads * 2 * config.head_dim *
         kPagePositions * static_cast<int64_t>(c10::elementSize(dtype));
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
        store_words<Word>(address(at.page) + head_bytes(layer, head), at.slot, head_dim_, key,
                          key + num_kv_heads_ * head_dim_);
      }
    }
  };
  if (c10::elementSize(dtype_) == 4) {
    move(uint32_t{});
  } else {
    move(uint16_t{});
  }
}

void KvCache::store(int64_t layer, const at::Tensor& pages, const at::Tensor& slots,
                    const at::Tensor& qkv) const {
  const int64_t rows = pages.size(0);
  const at::Tensor heads =
      qkv.narrow(0, 0, rows).narrow(1, 0, row_size()).view({rows, num_heads_ + 2 * num_kv_heads_, head_dim_});
  const at::Tensor own = slab_.select(1, layer);  // [pages, K, 2, D * P]
  at::Tensor keys = own.select(2, 0).view({num_pages_, num_kv_heads_, head_dim_, kPagePositions});
  at::Tensor values = own.select(2, 1).view({num_pages_, num_kv_heads_, kPagePositions, head_dim_});
  const std::optional<at::Tensor> none, page(pages), slot(slots);
  // With indices that are not adjacent the indexed dimension comes first, as in NumPy: [rows, K, D] both
  // times.
  keys.index_put_({page, none, none, slot}, heads.narrow(1, num_heads_, num_kv_heads_));
  values.index_put_({page, none, slot, none}, heads.narrow(1, num_heads_ + num_kv_heads_, num_kv_heads_));
}

void KvCache::copy_page(int64_t from, int64_t to) const {
  slab_.select(0, to).copy_(slab_.select(0, from));
}

at::Tensor KvCache::gather(int64_t layer, int64_t part, const std::vector<int32_t>& pages) const {
  const int64_t count = static_cast<int64_t>(pages.size());
  const at::Tensor index = upload(at::tensor(pages, at::kInt).to(at::kLong), device_);
  const at::Tensor own = slab_.select(1, layer).select(2, part).index_select(0, index);  // [n, K, D * P]
  const at::Tensor positions =
      part == 0 ? own.view({count, num_kv_heads_, head_dim_, kPagePositions}).transpose(2, 3)
                : own.view({count, num_kv_heads_, kPagePositions, head_dim_});
  return positions.transpose(0, 1).reshape({num_kv_heads_, count * kPagePositions, head_dim_});
}

}  // namespace troupe
