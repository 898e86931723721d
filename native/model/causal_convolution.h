// The convolution of a layer whose token mixer is no attention: over packed rows, and over rows that go on
// from kept ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/causal_conv.h"
#include "model/linear_states.h"
#include "model/trained.h"
#include "parameters/parameter_store.h"

namespace troupe {

// Depthwise and causal, over the last kConvWidth rows or fewer (kernels/causal_conv.h). C channels; what runs
// keep, conv [slots, kConvWidth - 1, C], is of the last rows that the convolution took.
class CausalConvolution {
 public:
  // Parameters name.weight [C, width] and, with bias, name.bias [C].
  CausalConvolution(const ParameterStore& store, const std::string& name, bool bias, bool silu);
  // Of channels that fall into `blocks`, in each the part of one of `ranks` ranks, one beside the other.
  CausalConvolution(const CausalConvolution& all, const std::vector<int64_t>& blocks, int64_t rank,
                    int64_t ranks);

  ops::ConvWeight weight() const;
  // Adds to the gradients what causal_conv_backward() gave.
  void add(const at::Tensor& gradient) const;

  // Of rows x [n, C] of runs: [n, C]; zeros in rows of none.
  at::Tensor step(const at::Tensor& x, const std::vector<ops::StateRun>& runs, const at::Tensor& conv) const;
  // Replaces what the runs keep, and writes the snapshots.
  static void keep(const at::Tensor& x, const std::vector<ops::StateRun>& runs,
                   const std::vector<StateSnapshot>& snapshots, const at::Tensor& conv);

 private:
  // Of some of the channels.
  struct Part {
    Trained weight, bias;
    int64_t channels() const { return weight.value.size(0); }
  };

  std::vector<Part> parts_;  // one beside the other
  bool silu_;
};

}  // namespace troupe
