// Mamba 2.
#pragma once

#include <memory>
#include <string>

#include "kernels/gated_norm.h"
#include "kernels/mamba.h"
#include "model/state_scan.h"

namespace troupe {

// Mamba 2 (Dao and Gu 2024, arXiv:2405.21060, section 7) as Nemotron-H has it. Columns of the input
// projection: [z, x, B, C, dt] of all heads. The convolution gives x, B and C; then
//   o = scan of x, B, C, step(dt), decay(dt); o = o + skip x       (kernels/mamba.h)
//   out = norm(o silu(z)), by group
// Key heads are the groups, whose B and C are keys and queries; value heads are the heads, whose x are
// values.
class Mamba2 final : public StateScan {
 public:
  Mamba2(const ParameterStore& store, const LinearAttentionConfig& config, const std::string& name)
      : StateScan(store, config, name) {}
  Mamba2(const Mamba2& all, int64_t rank, int64_t ranks) : StateScan(all, rank, ranks) {}
  std::unique_ptr<LinearAttention> own_heads(int64_t rank, int64_t ranks) const override {
    return std::make_unique<Mamba2>(*this, rank, ranks);
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
  ops::MambaSteps steps(const at::Tensor& mixed) const {
    return {head_columns(mixed, 0), small_.a_log.value, small_.dt_bias.value, config_.least_step};
  }
  ops::GatedNormSpec norm() const { return {config_.values() / config_.key_heads, config_.norm_eps, true}; }
};

}  // namespace troupe
