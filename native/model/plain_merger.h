// A merger without a gate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "model/vision_merger.h"

namespace troupe {

// LayerNorm, a product, GELU (erf), a product: M = C * merge_size^2 numbers in each row between them. The
// norm is of each patch, or of all patches of a row together, as after the layers whose features go into the
// decoder's first layers.
class PlainMerger : public VisionMerger {
 public:
  PlainMerger(const ParameterStore& store, const ModelConfig& config, const std::string& name);

  at::Tensor forward(const at::Tensor& x, MergerSaved* saved) const override;
  at::Tensor backward(const at::Tensor& dy, MergerSaved& saved) const override;

 private:
  // Of x, or of a tile: the rows that the norm is of.
  at::Tensor normed_rows(const at::Tensor& x) const { return x.view({-1, norm_.weight.size(0)}); }
  int64_t norms_per_row() const { return in_.weight.size(1) / norm_.weight.size(0); }

  int64_t merged_;  // patches of a row
  Norm norm_;
  Linear in_, out_;
};

}  // namespace troupe
