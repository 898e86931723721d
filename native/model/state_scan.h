// A mixer with a convolution, a scan over the rows of a sequence, and a gated norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/causal_conv.h"
#include "kernels/gated_delta_rule.h"
#include "model/causal_convolution.h"
#include "model/linear_attention.h"
#include "model/trained.h"

namespace troupe {

//   x = silu(convolution of the last kConvWidth rows of C of the columns)
//   o = scan of what prepare() makes of x and of numbers per head     (kernels/gated_delta_rule.h)
//   out = what finish() makes of o and of a gate
// What prepare() and finish() do is row-local: gated_delta_net.h, mamba2.h.
//
// Legend: T rows; Hk/Hv key/value heads of Dk/Dv numbers; C = 2 Hk Dk + Hv Dv channels of the convolution; P
// columns of the input projection. What backward() takes is what the norm took, float32.
class StateScan : public LinearAttention {
 public:
  at::Tensor forward(const at::Tensor& mixed, const ops::Segments& segments, at::Tensor* kept) const override;
  at::Tensor backward(const at::Tensor& mixed, const at::Tensor& kept, const at::Tensor& d_out,
                      const ops::Segments& segments) const override;
  void step(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
            const std::vector<StateSnapshot>& snapshots, const LinearStates& states,
            const at::Tensor& out) const override;

 protected:
  // Parameters of a few numbers; skip: of Mamba 2 alone.
  struct Small {
    Trained norm, a_log, dt_bias, skip;
  };
  // Their gradients as one tile of rows adds to them, float32, or of all tiles.
  struct SmallGradients {
    at::Tensor norm, a_log, dt_bias, skip;
    SmallGradients of(int64_t tile) const {
      return {norm[tile], a_log[tile], dt_bias[tile], skip.defined() ? skip[tile] : skip};
    }
  };
  // Rows of a tile, for their way back: d_rule by what the norm took, gradients by what the scan took.
  struct BackwardRows {
    at::Tensor x, mixed;
    ops::DeltaRows rows;
    at::Tensor d_rule;
    ops::DeltaRows gradients;
    at::Tensor d_mixed;
  };

  // config: with the heads of this rank. Parameters under `name`.
  StateScan(const ParameterStore& store, const LinearAttentionConfig& config, const std::string& name);
  StateScan(const StateScan& all, int64_t rank, int64_t ranks);

  // What the scan takes, from x [n, C] in the compute dtype and the same rows of mixed.
  virtual void prepare(const at::Tensor& x, const at::Tensor& mixed, const ops::DeltaRows& rows) const = 0;
  // Writes the columns of d_mixed that prepare() reads of mixed; gradients.x becomes that by x.
  virtual void prepare_backward(const BackwardRows& rows, const SmallGradients& sums) const = 0;
  // out [n, Hv Dv] from what the scan gave, which becomes what the norm takes.
  virtual void finish(const at::Tensor& given, const ops::DeltaRows& rows, const at::Tensor& mixed,
                      const at::Tensor& out) const = 0;
  // Writes d_rule, and the gate's columns of d_mixed.
  virtual void finish_backward(const at::Tensor& d_out, const at::Tensor& rule, const at::Tensor& mixed,
                               const at::Tensor& d_rule, const at::Tensor& d_mixed,
                               const SmallGradients& sums) const = 0;

  // Columns of mixed, or of its gradient.
  at::Tensor channels(const at::Tensor& mixed) const {
    return mixed.narrow(1, config_.first_channel(), config_.channels());
  }
  at::Tensor gate(const at::Tensor& mixed) const {
    return mixed.narrow(1, config_.first_gate(), config_.values());
  }
  // The which-th number of every value head.
  at::Tensor head_columns(const at::Tensor& mixed, int64_t which) const {
    return mixed.narrow(1, config_.channels() + config_.values() + which * config_.value_heads,
                        config_.value_heads);
  }

  ops::DeltaSpec spec_;
  Small small_;

 private:
  // What the convolution gives of all rows, [T, C] in the compute dtype (where it is wanted), and the scan
  // takes.
  ops::DeltaRows inputs(const at::Tensor& mixed, const ops::ConvTaps& taps, const ops::ConvWeight& weight,
                        const at::Tensor& convolved) const;
  // The scan over rows of runs, cut where a state is kept.
  void scan(const ops::DeltaRows& rows, std::vector<ops::StateRun> runs, std::vector<StateSnapshot> snapshots,
            const at::Tensor& rule, const at::Tensor& out) const;

  CausalConvolution convolution_;
};

}  // namespace troupe
