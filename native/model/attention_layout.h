// The parameters of attention, and of what stands in its place.
#pragma once

#include <cstdint>
#include <string>

#include "model/layout_builder.h"

namespace troupe {

// Those of a layer, under `prefix`: see decoder_layout.h.
class AttentionLayout : public LayoutBuilder {
 public:
  using LayoutBuilder::LayoutBuilder;

 protected:
  void add_attention(const std::string& prefix, int64_t layer);
  void add_linear_attention(const std::string& prefix);

 private:
  // Heads of k or of v, of a model that a layer sees.
  CutBlock key_heads(const ModelConfig& c) const;
  // What all heads are made from is on all ranks, and each finds the gradient's part of its own heads.
  void add_latent_projection(const std::string& prefix);
  // Cut by key heads, each with its value heads.
  void add_delta_net(const std::string& prefix);
  // Cut by groups, each with its heads.
  void add_mamba2(const std::string& prefix);
  // Cut by channels.
  void add_short_convolution(const std::string& prefix);
};

}  // namespace troupe
