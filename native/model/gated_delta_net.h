// Gated DeltaNet.
#pragma once

#include <memory>
#include <string>

#include "model/state_scan.h"

namespace troupe {

// Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, figure 1) as Qwen3-Next has it. Columns of
// the input projection: [q, k, v, z, b, a] of all heads. The convolution gives q, k, v; then
//   q and k to length one
//   o = gated delta rule of q, k, v, decay(a), beta(b)
//   out = norm(o) silu(z), by value head
class GatedDeltaNet final : public StateScan {
 public:
  GatedDeltaNet(const ParameterStore& store, const LinearAttentionConfig& config, const std::string& name)
      : StateScan(store, config, name) {}
  GatedDeltaNet(const GatedDeltaNet& all, int64_t rank, int64_t ranks) : StateScan(all, rank, ranks) {}
  std::unique_ptr<LinearAttention> own_heads(int64_t rank, int64_t ranks) const override {
    return std::make_unique<GatedDeltaNet>(*this, rank, ranks);
  }

 protected:
  void prepare(const at::Tensor& x, const at::Tensor& mixed, const ops::DeltaRows& rows) const override;
  void prepare_backward(const BackwardRows& rows, const SmallGradients& sums) const override;
  void finish(const at::Tensor& given, const ops::DeltaRows& rows, const at::Tensor& mixed,
              const at::Tensor& out) const override;
  void finish_backward(const at::Tensor& d_out, const at::Tensor& rule, const at::Tensor& mixed,
                       const at::Tensor& d_rule, const at::Tensor& d_mixed,
                       const SmallGradients& sums) const override;

 private:
  ops::DeltaGates gates(const at::Tensor& mixed) const {
    return {head_columns(mixed, 0), head_columns(mixed, 1), small_.a_log.value, small_.dt_bias.value,
            config_.beta_scale};
  }
};

}  // namespace troupe
