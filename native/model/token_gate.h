// What a layer adds to a row by the numbers that it gets of the row's token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "model/layers.h"

namespace troupe {

// Of T rows, what the backward pass needs.
struct TokenGateSaved {
  at::Tensor y;        // [T, H] before it
  at::Tensor both;     // [T, 2P] what the activation gets, and the inputs beside it
  at::Tensor product;  // [T, H] input of the norm
  NormStats norm;
};

// y += norm(W_out (act(W_in y) * inputs)) (Gemma 4: per_layer_input_gate and per_layer_projection of
// Gemma4TextDecoderLayer in transformers), row by row. inputs [n, P]: the layer's part of what
// PerLayerEmbeddings makes. Ranks that share matrices have all of these.
class TokenGate {
 public:
  TokenGate(const ParameterStore& store, const ModelConfig& config, const std::string& name);

  // The weights for many calls.
  struct Packed {
    Linear::Packed in, out;
  };
  Packed pack(ops::Quantization quantization = ops::Quantization::kNone) const {
    return {in_.pack_forward(quantization), out_.pack_forward(quantization)};
  }
  int64_t size() const { return in_.out_features(); }
  // y [n, H] in place. saved may be null.
  void forward(const at::Tensor& y, const at::Tensor& inputs, int64_t row_tile, TokenGateSaved* saved,
               const Packed& packed) const;
  // dy [T, H]: the gradient by its output becomes that by its input; d_inputs [T, P] is overwritten, or
  // nothing where it is undefined. Adds to the gradients of what is trained. Consumes `saved`.
  void backward(const at::Tensor& dy, const at::Tensor& d_inputs, int64_t row_tile,
                const TokenGateSaved& saved) const;
  void enable_adapters(bool enabled) { in_.adapters_enabled = out_.adapters_enabled = enabled; }

 private:
  Activation activation_;
  Linear in_, out_;
  Norm norm_;
};

}  // namespace troupe
