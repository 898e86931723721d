// The token mixer of a layer of linear attention: a convolution, a scan over the rows of a sequence, and a
// gated norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/causal_conv.h"
#include "kernels/gated_delta_rule.h"
#include "model/model_config.h"
#include "parameters/parameter_store.h"

namespace troupe {

// Of one layer: what running sequences keep, by slot. conv [slots, kConvWidth - 1, C] in the compute dtype:
// the last rows that the convolution took; rule [slots, Hv, Dk, Dv] float32. Contiguous within a slot.
struct LinearStates {
  at::Tensor conv, rule;
};

// The state behind the first `count` rows of a run also goes into this slot, which is that of no run.
struct StateSnapshot {
  size_t run;
  int64_t count, slot;
};

// From rows of an input projection to what the output projection takes:
//   x = silu(convolution of the last kConvWidth rows of C of the columns)
//   o = scan of what prepare() makes of x and of numbers per head     (kernels/gated_delta_rule.h)
//   out = what finish() makes of o and of a gate
// Between the two projections, and so the only part of a layer that looks across rows. What prepare() and
// finish() do is row-local: gated_delta_net.h, mamba2.h.
//
// Legend: T rows; Hk/Hv key/value heads of Dk/Dv numbers; C = 2 Hk Dk + Hv Dv channels of the convolution; P
// columns of the input projection.
class LinearAttention {
 public:
  virtual ~LinearAttention() = default;

  int64_t columns() const { return config_.columns(); }
  const LinearAttentionConfig& config() const { return config_; }
  // With the heads of one of `ranks` ranks, which have as many each: of their columns (column_blocks()) it
  // makes those of the result, and finds the gradients of what is theirs.
  virtual std::unique_ptr<LinearAttention> own_heads(int64_t rank, int64_t ranks) const = 0;

  // mixed [T, P] -> [T, Hv Dv]; rows behind the last segment give zeros. rule: where it is given, set to what
  // the norm of finish() took, [T, Hv Dv] float32, which backward() takes.
  at::Tensor forward(const at::Tensor& mixed, const ops::Segments& segments, at::Tensor* rule) const;
  // dmixed [T, P] from d_out [T, Hv Dv]; adds to the gradients of what is trained.
  at::Tensor backward(const at::Tensor& mixed, const at::Tensor& rule, const at::Tensor& d_out,
                      const ops::Segments& segments) const;
  // The same of rows that go on from kept states, bit for bit (on a CPU): mixed [n, P] with adjacent columns,
  // out [n, Hv Dv], of which the runs' rows are written. Replaces the states of the runs. snapshots: by run
  // and count.
  void step(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
            const std::vector<StateSnapshot>& snapshots, const LinearStates& states,
            const at::Tensor& out) const;

 protected:
  struct Trained {
    at::Tensor value, grad;  // grad: undefined where it is not trained
    // parts [tiles, size]
    void add(const at::Tensor& gradient) const {
      if (grad.defined()) at::Tensor(grad).add_(gradient);
    }
    // `count` rows from `first` on; of none, none.
    Trained rows(int64_t first, int64_t count) const {
      const auto of = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, first, count) : t; };
      return {of(value), of(grad)};
    }
  };
  // A convolution of some of the channels.
  struct Convolution {
    int64_t channels;
    Trained weight, bias;
  };
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
  LinearAttention(const ParameterStore& store, const ModelConfig& config, const std::string& name);
  LinearAttention(const LinearAttention& all, int64_t rank, int64_t ranks);

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

  LinearAttentionConfig config_;
  ops::DeltaSpec spec_;
  Small small_;

 private:
  // What the convolution gives of all rows, [T, C] in the compute dtype (where it is wanted), and the scan
  // takes.
  ops::DeltaRows inputs(const at::Tensor& mixed, const ops::ConvTaps& taps, const at::Tensor& weight,
                        const at::Tensor& convolved) const;
  template <typename Body>
  static void for_each_tap(const std::vector<ops::StateRun>& runs, Body&& body);
  // The convolution of rows of runs.
  at::Tensor convolve(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
                      const at::Tensor& conv) const;
  void keep_rows(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
                 const std::vector<StateSnapshot>& snapshots, const at::Tensor& conv) const;
  // The scan over rows of runs, cut where a state is kept.
  void scan(const ops::DeltaRows& rows, std::vector<ops::StateRun> runs, std::vector<StateSnapshot> snapshots,
            const at::Tensor& rule, const at::Tensor& out) const;

  at::Tensor conv_weight() const;
  // Adds to their gradients; as causal_conv_backward() gives it.
  void add_to_convolutions(const at::Tensor& gradient) const;

  std::vector<Convolution> convolutions_;  // one beside the other
};

// Under layer `prefix` ("layers.0."), whose parameters are `prefix` + linear_attention_name() + ".*".
std::unique_ptr<LinearAttention> linear_attention(const ParameterStore& store, const ModelConfig& config,
                                                  const std::string& prefix);

}  // namespace troupe
