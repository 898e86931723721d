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

// Of the layers that keep keys and values, in their order.
std::vector<HeadShape> kept_heads(const ModelConfig& config) {
  std::vector<HeadShape> heads;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_linear_layer(layer) && !config.shares_keys(layer)) heads.push_back(config.heads(layer));
  }
  return heads;
}

// Of a layer in a page.
int64_t numbers_of(const HeadShape& heads, int64_t parts) {
  return heads.num_kv_heads * parts * heads.head_dim * kPagePositions;
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
    : num_heads_(config.num_heads),
      parts_(parts_of(config)),
      num_pages_(num_pages),
      page_bytes_(page_bytes(config, dtype)),
      dtype_(dtype),
      device_(device) {
  int64_t begin = 0;
  for (const HeadShape& heads : kept_heads(config)) {
    layers_.push_back({heads.num_kv_heads, heads.head_dim, begin});
    begin += numbers_of(heads, parts_);
  }
  take_memory();
}

void KvCache::take_memory() {
  if (slab_.defined()) return;
  const AllocateFor part(MemoryPart::kKvCache);
  const std::vector<int64_t> sizes{num_pages_, page_bytes_ / static_cast<int64_t>(c10::elementSize(dtype_))};
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
  int64_t numbers = 0;
  for (const HeadShape& heads : kept_heads(config)) numbers += numbers_of(heads, parts_of(config));
  return numbers * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t KvCache::head_bytes(int64_t layer, int64_t head) const {
  const Layer& own = at(layer);
  return (own.begin + head * parts_ * own.head_dim * kPagePositions) *
         static_cast<int64_t>(c10::elementSize(dtype_));
}

void KvCache::store(int64_t layer, const std::vector<KvSlot>& slots, const at::Tensor& qkv, int64_t begin,
                    int64_t end) const {
  const auto move = [&, heads = at(layer).num_kv_heads, dim = at(layer).head_dim](auto word) {
    using Word = decltype(word);
    const Word* rows = static_cast<const Word*>(qkv.const_data_ptr());
    for (int64_t row = begin; row < end; ++row) {
      const KvSlot slot = slots[static_cast<size_t>(row)];
      const Word* key = rows + row * qkv.stride(0) + num_heads_ * dim;
      for (int64_t head = 0; head < heads; ++head, key += dim) {
        auto* const there = reinterpret_cast<Word*>(address(slot.page) + head_bytes(layer, head));
        if (keys_hold_values()) {
          store_words<Word>(there, slot.slot, dim, nullptr, key);
        } else {
          store_words<Word>(there, slot.slot, dim, key, key + heads * dim);
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

at::Tensor KvCache::pages_of(const Layer& layer) const {
  const int64_t part = layer.head_dim * kPagePositions;
  return slab_.narrow(1, layer.begin, layer.num_kv_heads * parts_ * part)
      .view({num_pages_, layer.num_kv_heads, parts_, part});
}

at::Tensor KvCache::columns(const Layer& layer, const at::Tensor& qkv, int64_t part, int64_t rows) const {
  const int64_t size = layer.num_kv_heads * layer.head_dim;
  return qkv.narrow(0, 0, rows)
      .narrow(1, num_heads_ * layer.head_dim + (keys_hold_values() ? 0 : part * size), size)
      .view({rows, layer.num_kv_heads, layer.head_dim});
}

void KvCache::store(int64_t layer, const at::Tensor& pages, const at::Tensor& slots,
                    const at::Tensor& qkv) const {
  const Layer& shape = at(layer);
  const int64_t rows = pages.size(0), heads = shape.num_kv_heads, dim = shape.head_dim;
  const at::Tensor own = pages_of(shape);  // [pages, K, parts, D * P]
  at::Tensor values = own.select(2, parts_ - 1).view({num_pages_, heads, kPagePositions, dim});
  const std::optional<at::Tensor> none, page(pages), slot(slots);
  // With indices that are not adjacent the indexed dimension comes first, as in NumPy: [rows, K, D] both
  // times.
  values.index_put_({page, none, slot, none}, columns(shape, qkv, 1, rows));
  if (keys_hold_values()) return;
  at::Tensor keys = own.select(2, 0).view({num_pages_, heads, dim, kPagePositions});
  keys.index_put_({page, none, none, slot}, columns(shape, qkv, 0, rows));
}

void KvCache::copy_page(int64_t from, int64_t to) const {
  slab_.select(0, to).copy_(slab_.select(0, from));
}

at::Tensor KvCache::gather(int64_t layer, int64_t part, const std::vector<int32_t>& pages) const {
  const Layer& shape = at(layer);
  const int64_t count = static_cast<int64_t>(pages.size()), heads = shape.num_kv_heads, dim = shape.head_dim;
  const at::Tensor index = upload(at::tensor(pages, at::kInt).to(at::kLong), device_);
  const int64_t kept = keys_hold_values() ? 0 : part;
  const at::Tensor own = pages_of(shape).select(2, kept).index_select(0, index);  // [n, K, D * P]
  const at::Tensor positions = kept == 0 && !keys_hold_values()
                                   ? own.view({count, heads, dim, kPagePositions}).transpose(2, 3)
                                   : own.view({count, heads, kPagePositions, dim});
  return positions.transpose(0, 1).reshape({heads, count * kPagePositions, dim});
}

}  // namespace troupe
