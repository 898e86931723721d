// The gated short convolution of LFM2.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/causal_convolution.h"
#include "model/linear_attention.h"

namespace troupe {

// As LFM2 has it (Liquid AI 2025, arXiv:2511.23404). Columns of the input projection: [b, c, x]
// of C channels each; then
//   y = convolution of the last rows of b x
//   out = c y
// Each channel is a head of its own, of one number. What backward() takes is y.
class ShortConvolution final : public LinearAttention {
 public:
  // config: with the channels of this rank. Parameters under `name`.
  ShortConvolution(const ParameterStore& store, const LinearAttentionConfig& config, const std::string& name);
  ShortConvolution(const ShortConvolution& all, int64_t rank, int64_t ranks);
  std::unique_ptr<LinearAttention> own_heads(int64_t rank, int64_t ranks) const override {
    return std::make_unique<ShortConvolution>(*this, rank, ranks);
  }

  at::Tensor forward(const at::Tensor& mixed, const ops::Segments& segments, at::Tensor* kept) const override;
  at::Tensor backward(const at::Tensor& mixed, const at::Tensor& kept, const at::Tensor& d_out,
                      const ops::Segments& segments) const override;
  void step(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
            const std::vector<StateSnapshot>& snapshots, const LinearStates& states,
            const at::Tensor& out) const override;

 private:
  // b x of all rows, [T, C], in tiles of so many.
  at::Tensor inputs(const at::Tensor& mixed, int64_t row_tile) const;

  CausalConvolution convolution_;
};

}  // namespace troupe
