// Keys and values of all running sequences: one slab of pages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/paged_attention.h"
#include "model/model_config.h"

namespace troupe {

using kernels::kPagePositions;

// Where a row of a step keeps its key and value.
struct KvSlot {
  int32_t page;
  int32_t slot;  // within the page
};

// Keys and values of all layers that keep some, in the compute dtype: pages, in each of which the layers lie
// one behind the other, [K, 2, D * kPagePositions] of the layer's heads (ModelConfig::heads). Of a head the
// first part is K transposed [D, kPagePositions], the second V [kPagePositions, D]. Where keys hold the
// values (ModelConfig::keys_hold_values) the second is all that there is, [K, 1, D * kPagePositions]. On a
// CPU memory is taken when it is first written. What no one has written is uninitialised. A layer is numbered
// by its place among those that keep some.
class KvCache {
 public:
  KvCache(const ModelConfig& config, at::ScalarType dtype, at::Device device, int64_t num_pages);

  // The slab is allocated by take_memory() (no effect if it is there) and freed by release_memory().
  void take_memory();
  void release_memory();

  static int64_t pages_for(int64_t positions);
  static int64_t page_bytes(const ModelConfig& config, at::ScalarType dtype);
  int64_t num_pages() const { return num_pages_; }
  int64_t bytes() const { return num_pages_ * page_bytes_; }

  // Stores keys and values of one layer: rows [begin, end) of qkv [n, (Q+2K)*D], or wider, after rotary at
  // `slots`; CPU.
  void store(int64_t layer, const std::vector<KvSlot>& slots, const at::Tensor& qkv, int64_t begin,
             int64_t end) const;
  // The same for all rows on any device; pages and slots [n] int64 on the device.
  void store(int64_t layer, const at::Tensor& pages, const at::Tensor& slots, const at::Tensor& qkv) const;
  // What page `from` holds, in page `to`.
  void copy_page(int64_t from, int64_t to) const;

  // Of a page, on the device.
  char* address(int64_t page) const { return base_ + page * page_bytes_; }
  // From the start of a page to the keys of this layer and head.
  int64_t head_bytes(int64_t layer, int64_t head) const;
  // Keys (part 0) or values (part 1) of one layer in these pages: [K, pages * kPagePositions, D].
  at::Tensor gather(int64_t layer, int64_t part, const std::vector<int32_t>& pages) const;

  bool keys_hold_values() const { return parts_ == 1; }
  const at::Device& device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }

 private:
  struct Layer {
    int64_t num_kv_heads, head_dim;
    int64_t begin;  // in a page, in numbers
  };
  const Layer& at(int64_t layer) const { return layers_[static_cast<size_t>(layer)]; }
  // The layer's part of all pages [pages, K, parts, D * kPagePositions].
  at::Tensor pages_of(const Layer& layer) const;
  // Of a row, the numbers of its keys, or of its values.
  at::Tensor columns(const Layer& layer, const at::Tensor& qkv, int64_t part, int64_t rows) const;

  std::vector<Layer> layers_;
  int64_t num_heads_, parts_, num_pages_, page_bytes_;
  at::ScalarType dtype_;
  at::Device device_;
  at::Tensor slab_;
  char* base_ = nullptr;
};

}  // namespace troupe
