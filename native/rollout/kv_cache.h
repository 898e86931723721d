// Keys and values of running sequences, in pages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace troupe {

// A run of consecutive positions of one sequence: a prompt, or what one sample added to it.
struct KvSegment {
  std::vector<at::Tensor> pages;  // each [num_layers, num_kv_heads, 2, D * kPagePositions], see KvCache
  int64_t length = 0;             // positions
};

// Keys and values of all layers, in the compute dtype, in pages of kernels::kPagePositions positions
// that are handed out as sequences grow and taken back when they end. A page's [layer, head, 0] is K
// transposed [D, kPagePositions], its [layer, head, 1] V [kPagePositions, D].
class KvCache {
 public:
  KvCache(const ModelConfig& config, at::ScalarType dtype, at::Device device);

  static int64_t pages_for(int64_t positions);
  int64_t page_bytes() const;
  int64_t allocated_pages() const { return allocated_pages_; }

  // Adds pages until `length` positions have room. What is new is uninitialised.
  void grow(KvSegment& segment, int64_t length);
  void release(KvSegment& segment);

  // Stores keys and values of one layer for positions [first, first + n) of a segment that has grown to
  // hold them. qkv [n, (Q+2K)*D] after rotary, rows contiguous, on the cache's device.
  void store(int64_t layer, const KvSegment& segment, int64_t first, const at::Tensor& qkv) const;
  // The same for one head, from n rows of row_size() elements at `qkv`; CPU only.
  void store_head(int64_t layer, int64_t head, const KvSegment& segment, int64_t first, const void* qkv,
                  int64_t n) const;
  int64_t row_size() const { return (num_heads_ + 2 * num_kv_heads_) * head_dim_; }

  // From the start of a page to the keys of this layer and head.
  int64_t head_bytes(int64_t layer, int64_t head) const;

  const at::Device& device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }

 private:
  int64_t num_layers_, num_heads_, num_kv_heads_, head_dim_;
  at::ScalarType dtype_;
  at::Device device_;
  std::vector<at::Tensor> free_pages_;
  int64_t allocated_pages_ = 0;
};

}  // namespace troupe
