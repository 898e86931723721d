// A mixture of experts in place of the MLP.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/layers.h"

namespace troupe {

// What the backward pass of a mixture of experts needs.
struct MoeSaved {
  at::Tensor probs;                   // [T, E] float32 router softmax
  at::Tensor experts;                 // [T, k] int64 chosen
  at::Tensor weights;                 // [T, k] float32 routing weights
  at::Tensor slot_of;                 // [T, k] int64 row of (token, choice) in the slot arrays
  at::Tensor token_of;                // [slots] int64; -1 for padding
  std::vector<int64_t> block_expert;  // expert of each block of kSlotBlock slots
  at::Tensor inner;                   // [slots, 2F] expert inputs of the activation
  at::Tensor outputs;                 // [slots, H] expert outputs, unweighted
};

// Top-k routed experts (Mixtral, Qwen 3 MoE): softmax over all experts, the k largest, renormalised
// when the config says so. Tokens are sorted by expert into slots, each expert padded to whole
// blocks of rows: every GEMM has one shape, so a token's result does not depend on how many others
// chose the same expert.
class MoeMlp {
 public:
  MoeMlp() = default;
  MoeMlp(const ParameterStore& store, const ModelConfig& config, int64_t layer);

  // out [T, H] = moe(x [T, H]); saved may be null.
  void forward(const at::Tensor& x, const at::Tensor& out, int64_t row_tile, MoeSaved* saved) const;
  // dx [T, H] is overwritten; the gradients of weights that are trained are added to.
  void backward(const at::Tensor& dout, const at::Tensor& x, const MoeSaved& saved,
                const at::Tensor& dx) const;

 private:
  void route(const at::Tensor& x, int64_t row_tile, MoeSaved& saved) const;
  void route_worst_case(int64_t tokens, MoeSaved& saved) const;
  void backward_router(const at::Tensor& d_weights, const at::Tensor& x, const MoeSaved& saved,
                       const at::Tensor& dx) const;

  MoeConfig moe_;
  Activation activation_ = Activation::kSilu;
  bool gated_ = true;
  Linear router_;
  std::vector<Linear> in_, out_;
};

}  // namespace troupe
