// What lies between the two matrices of an MLP.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "kernels/xielu.h"
#include "model/model_config.h"
#include "parameters/parameter_store.h"

namespace troupe {

// The activation of a layer's MLP, with the scalars that xIELU has. Ranks that share the matrices have all of
// these scalars, and each finds what its own columns have of their gradients.
class MlpActivation {
 public:
  MlpActivation() = default;
  MlpActivation(const ParameterStore& store, const ModelConfig& config, const std::string& name);

  // Of ops::activation_forward and ops::activation_backward, tile by tile. sums: the tile's rows of
  // make_sums().
  void forward(const at::Tensor& x, const at::Tensor& out) const;
  void backward(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& dx, const at::Tensor& out,
                const at::Tensor& sums) const;

  // [rows, 2] float32 for what each row has of the scalars' gradients; undefined: none are trained.
  at::Tensor make_sums(int64_t rows) const;
  // Adds them up in the order of the rows, whichever thread had them.
  void finish(const at::Tensor& sums) const;

 private:
  Activation kind_ = Activation::kSilu;
  bool gated_ = true;
  ops::Xielu xielu_;                        // undefined without it
  at::Tensor alpha_p_grad_, alpha_n_grad_;  // undefined where they are not trained
};

}  // namespace troupe
