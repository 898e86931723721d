// A layer that predicts one token further than what lies before it.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/block.h"
#include "model/layers.h"

namespace troupe {

// What the backward pass of a prediction layer reads. n rows: those that a rank has between matrices that
// ranks share; T: all.
struct PredictionSaved {
  at::Tensor tokens, hidden;  // [n, H] the layer's inputs
  NormStats token_norm, hidden_norm;
  at::Tensor joined;  // [n, 2H] both norms' outputs side by side
  BlockSaved block;
  at::Tensor output;  // [T, H] before the last norm
  NormStats norm;
};

// Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2, equations 21 to 23): of the hidden
// state h_t that the decoder, or the layer before, gives at position t, and of the embedding e of a token
// behind it,
//   y_t = norm(block([norm(e), norm(h_t)] W^T))
// which the decoder's head takes to predict the token after that. The two norms may stand the other way round
// (PredictionConfig::hidden_first).
class PredictionLayer {
 public:
  // layer: num_layers + k; part: what the store has of the model.
  PredictionLayer(const ParameterStore& store, const ModelConfig& config, int64_t layer,
                  const DecoderPart& part);

  const Block& block() const { return block_; }
  // y [n, H] before the last norm, from tokens and hidden [n, H].
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& hidden, const RowContext& rows,
                     PredictionSaved& saved) const;
  // A generation takes the layer apart, as it does any other: this is what the block takes, x [n, H].
  void block_inputs(const at::Tensor& tokens, const at::Tensor& hidden, int64_t row_tile,
                    const Linear::Packed& weight, const at::Tensor& x) const;
  Linear::Packed pack_inputs(ops::Quantization quantization) const { return in_.pack_forward(quantization); }
  const Norm& norm() const { return norm_; }
  // Of all rows, [T, H].
  at::Tensor last_norm(const at::Tensor& y, PredictionSaved& saved) const;

  // Gradients by y, from that by the norm of all rows, and by the inputs, from that by y. They add to the
  // gradients of what is trained; the second consumes `saved`.
  at::Tensor last_norm_backward(const at::Tensor& d_normed, const PredictionSaved& saved) const;
  struct InputGradients {
    at::Tensor tokens, hidden;  // [n, H]
  };
  InputGradients backward(const at::Tensor& dy, const RowContext& rows, PredictionSaved& saved) const;

 private:
  // Both norms' outputs side by side.
  at::Tensor joined(const at::Tensor& tokens, const at::Tensor& hidden, const NormStats& token_stats,
                    const NormStats& hidden_stats) const;

  Block block_;
  Norm token_norm_, hidden_norm_, norm_;
  Linear in_;
  bool hidden_first_;
};

}  // namespace troupe
