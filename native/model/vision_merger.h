// From the patches that one token stands for to a row of the decoder.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "model/layers.h"
#include "model/model_config.h"
#include "parameters/parameter_store.h"

namespace troupe {

// What a merger's backward pass reads, of the n rows that it makes.
struct MergerSaved {
  at::Tensor x;      // [n * merge_size^2, C]
  NormStats norm;    // of the rows that are normed
  at::Tensor inner;  // [n, inner width] before the activation
  // With a gate alone.
  at::Tensor merged, projected;  // [n, H]
  NormStats projected_norm;
};

// Rows of patches lie as ImagePatches has them (model/image_patches.h).
class VisionMerger {
 public:
  virtual ~VisionMerger() = default;

  // x [T, C] -> [T / merge_size^2, H]. saved may be null.
  virtual at::Tensor forward(const at::Tensor& x, MergerSaved* saved) const = 0;
  // Gradient by x, from dy [T / merge_size^2, H]; adds to the gradients of what is trained. Consumes `saved`.
  virtual at::Tensor backward(const at::Tensor& dy, MergerSaved& saved) const = 0;
};

// That behind the last layer of a tower.
std::unique_ptr<VisionMerger> last_merger(const ParameterStore& store, const ModelConfig& config);

}  // namespace troupe
