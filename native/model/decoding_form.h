// What a generation asks of the weights.
#pragma once

#include "kernels/quantized_matrix.h"

namespace troupe {

struct DecodingForm {
  // Of the layers' weights, and of the head where ops::multiplies_codes.
  ops::Quantization quantization = ops::Quantization::kNone;
  bool predicts = false;  // the layer for further tokens takes part
  // Attention is over the latents of a model that has them, as over_latents() says (model/model_config.h).
  bool latents = false;
};

}  // namespace troupe
