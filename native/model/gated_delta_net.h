// The token mixer of a layer of linear attention: convolution, gated delta rule, gated norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/causal_conv.h"
#include "kernels/gated_delta_rule.h"
#include "model/model_config.h"
#include "parameters/parameter_store.h"

namespace troupe {

// Of one layer: what running sequences keep, by slot. conv [slots, kConvWidth - 1, C] in the compute dtype:
// the last rows that the convolution took; rule [slots, Hv, Dk, Dv] float32. Contiguous within a slot.
struct DeltaStates {
  at::Tensor conv, rule;
};

// The state behind the first `count` rows of a run also goes into this slot, which is that of no run.
struct StateSnapshot {
  size_t run;
  int64_t count, slot;
};

// Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, figure 1) as Qwen3-Next has it. From rows
// of an input projection, [q, k, v, z, b, a] of all heads, to what the output projection takes:
//   q, k, v = silu(convolution of the last kConvWidth rows), q and k to length one
//   o = gated delta rule of q, k, v, decay(a), beta(b)           (kernels/gated_delta_rule.h)
//   out = norm(o) silu(z), by value head
// Between the two projections, and so the only part of a layer that looks across rows.
//
// Legend: T rows; Hk/Hv key/value heads of Dk/Dv numbers; C = 2 Hk Dk + Hv Dv channels of the convolution; P
// = C + Hv Dv + 2 Hv columns.
class GatedDeltaNet {
 public:
  // config: with the heads of this rank. Parameters under `name`.
  GatedDeltaNet(const ParameterStore& store, const ModelConfig& config, const std::string& name);

  int64_t columns() const { return delta_.columns(); }

  // mixed [T, P] -> [T, Hv Dv]; rows behind the last segment give zeros. rule: where it is given, set to what
  // the rule gave, [T, Hv Dv] float32, which backward() takes.
  at::Tensor forward(const at::Tensor& mixed, const ops::Segments& segments, at::Tensor* rule) const;
  // dmixed [T, P] from d_out [T, Hv Dv]; adds to the gradients of what is trained.
  at::Tensor backward(const at::Tensor& mixed, const at::Tensor& rule, const at::Tensor& d_out,
                      const ops::Segments& segments) const;
  // The same of rows that go on from kept states, bit for bit (on a CPU): mixed [n, P] with adjacent columns,
  // out [n, Hv Dv], of which the runs' rows are written. Replaces the states of the runs. snapshots: by run
  // and count.
  void step(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
            const std::vector<StateSnapshot>& snapshots, const DeltaStates& states,
            const at::Tensor& out) const;

 private:
  // Columns of mixed, or of its gradient.
  at::Tensor channels(const at::Tensor& mixed) const { return mixed.narrow(1, 0, delta_.channels()); }
  at::Tensor gate(const at::Tensor& mixed) const {
    return mixed.narrow(1, delta_.channels(), delta_.values());
  }
  at::Tensor head_columns(const at::Tensor& mixed, int64_t which) const {
    return mixed.narrow(1, delta_.channels() + delta_.values() + which * delta_.value_heads,
                        delta_.value_heads);
  }
  ops::DeltaGates gates(const at::Tensor& mixed) const {
    return {head_columns(mixed, 0), head_columns(mixed, 1), a_log_, dt_bias_};
  }
  // What the convolution gives of all rows, [T, C] in the compute dtype (where it is wanted), and the rule
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
  // The rule over rows of runs, cut where a state is kept.
  void scan(const ops::DeltaRows& rows, std::vector<ops::StateRun> runs, std::vector<StateSnapshot> snapshots,
            const at::Tensor& rule, const at::Tensor& out) const;

  DeltaConfig delta_;
  ops::DeltaSpec spec_;
  double eps_;
  at::Tensor conv_, a_log_, dt_bias_, norm_;
  at::Tensor conv_grad_, a_log_grad_, dt_bias_grad_, norm_grad_;  // undefined where they are not trained
};

}  // namespace troupe
