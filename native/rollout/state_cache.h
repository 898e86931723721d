// What running sequences keep of layers of linear attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/linear_attention.h"
#include "model/model_config.h"

namespace troupe {

// A slot per running sequence, with the state of every such layer: [layers, slots, ...] of LinearStates. On a
// CPU memory is taken when it is first written. What no one has written is uninitialised. Without such layers
// it holds nothing.
class StateCache {
 public:
  // config: with the heads and layers of this rank.
  StateCache(const ModelConfig& config, at::ScalarType dtype, at::Device device, int64_t slots);

  // As those of KvCache.
  void take_memory();
  void release_memory();

  static int64_t slot_bytes(const ModelConfig& config, at::ScalarType dtype);
  int64_t bytes() const { return slots_ * slot_bytes_; }

  // Of the layer-th of its layers.
  LinearStates layer(int64_t layer) const { return {conv_.select(0, layer), rule_.select(0, layer)}; }
  void copy(int64_t from, int64_t to) const;

 private:
  LinearAttentionConfig linear_;
  int64_t layers_, slots_, slot_bytes_;
  at::ScalarType dtype_;
  at::Device device_;
  at::Tensor conv_, rule_;
};

}  // namespace troupe
