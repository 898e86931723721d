// What the experts of a mixture see in place of a token's row, and the way back.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "model/layers.h"

namespace troupe {

// Of T rows, what the backward pass needs: inputs and summed outputs of the experts, [T, L].
struct ExpertLatentSaved {
  at::Tensor inputs, sum;
};

// out = W_out (sum over the chosen experts of weight * expert(W_in x)), both matrices common to all experts,
// whose rows have L numbers (LatentMoE of Nemotron 3; NemotronHMoE of transformers). Router and shared expert
// see x. Every rank that shares the experts, or their matrices, has both, multiplies its own part of the sum,
// and finds a part of their gradients.
class ExpertLatent {
 public:
  ExpertLatent(const ParameterStore& store, const std::string& name)
      : in_(store, name + ".in"), out_(store, name + ".out") {}

  // The weights for many calls.
  struct Packed {
    Linear::Packed in, out;
  };
  Packed pack() const { return {in_.pack_forward(), out_.pack_forward()}; }
  // [T, L] of x [T, H]. Without `packed` weights are packed here, and with kDecodeRowTile rows read as they
  // lie.
  at::Tensor inputs(const at::Tensor& x, int64_t row_tile, const Packed& packed) const;
  // out [T, H] of sum [T, L].
  void outputs(const at::Tensor& sum, const at::Tensor& out, int64_t row_tile, const Packed& packed) const;
  // The gradient by sum from dout; adds to that of the matrix.
  at::Tensor outputs_backward(const at::Tensor& dout, const at::Tensor& sum) const;
  // dx [T, H], overwritten, from d_inputs [T, L]; adds to the gradient of the matrix.
  void inputs_backward(const at::Tensor& d_inputs, const at::Tensor& x, const at::Tensor& dx) const;
  void enable_adapters(bool enabled) { in_.adapters_enabled = out_.adapters_enabled = enabled; }

 private:
  Linear in_, out_;
};

}  // namespace troupe
