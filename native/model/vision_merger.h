// From the patches that one token stands for to a row of the decoder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "model/layers.h"
#include "model/model_config.h"
#include "parameters/parameter_store.h"

namespace troupe {

// What a merger's backward pass reads: M = C * merge_size^2 numbers in each of the n rows that it makes.
struct MergerSaved {
  at::Tensor x;      // [n * merge_size^2, C]
  NormStats norm;    // of the rows that are normed
  at::Tensor inner;  // [n, M] before the activation
};

// LayerNorm, a product, GELU (erf), a product. The norm is of each patch, or of all patches of a row together
// (`together`), as after the layers whose features go into the decoder's first layers.
class VisionMerger {
 public:
  VisionMerger(const ParameterStore& store, const ModelConfig& config, const std::string& name,
               bool together);

  // x [T, C] -> [T / merge_size^2, H]. saved may be null.
  at::Tensor forward(const at::Tensor& x, MergerSaved* saved) const;
  // Gradient by x, from dy [T / merge_size^2, H]; adds to the gradients of what is trained. Consumes `saved`.
  at::Tensor backward(const at::Tensor& dy, MergerSaved& saved) const;

 private:
  // Of x, or of a tile: the rows that the norm is of.
  at::Tensor normed_rows(const at::Tensor& x) const { return x.view({-1, norm_.weight.size(0)}); }
  int64_t norms_per_row() const { return in_.weight.size(1) / norm_.weight.size(0); }

  int64_t merged_;  // patches of a row
  Norm norm_;
  Linear in_, out_;
};

}  // namespace troupe
