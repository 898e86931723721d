// A merger with a gate, as GLM-4.1V has it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "model/vision_merger.h"

namespace troupe {

// The norm of each patch, a product over the patches of a row (a convolution in the files, whose columns go
// channel by channel), a product, LayerNorm, GELU (erf), and an MLP with a gate and the activation of the
// tower's layers (GLM-4.1V, arXiv:2507.01006, section 2).
class GatedMerger : public VisionMerger {
 public:
  GatedMerger(const ParameterStore& store, const ModelConfig& config, const std::string& name);

  at::Tensor forward(const at::Tensor& x, MergerSaved* saved) const override;
  at::Tensor backward(const at::Tensor& dy, MergerSaved& saved) const override;

 private:
  // [n * merge_size^2, C] -> [n, C * merge_size^2], as the columns of the first product lie, and back.
  at::Tensor by_channel(const at::Tensor& patches) const;
  at::Tensor by_patch(const at::Tensor& row) const;

  int64_t patches_;  // of a row
  Activation activation_;
  Norm norm_, projected_norm_;
  Linear merge_, project_, in_, out_;
};

}  // namespace troupe
