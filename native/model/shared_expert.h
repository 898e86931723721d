// The expert of a mixture that every token goes to.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "model/layers.h"

namespace troupe {

// What its backward pass needs, of T rows.
struct SharedExpertSaved {
  at::Tensor inner;  // [T, 2S]: what its activation gets
  at::Tensor gate;   // [T, 1] float32; undefined without a gate
};

// sigmoid(x g^T) * down(act(gate(x)) * up(x)), beside the experts that are chosen: Qwen1.5-MoE and Qwen2-MoE
// (Qwen2MoeSparseMoeBlock of transformers); without the gate's factor in DeepSeekMoE (Dai et al. 2024,
// arXiv:2401.06066) and what follows it. Ranks of a tensor-parallel group each have a part of its columns,
// and the whole gate, of whose gradient each finds a part; those of an expert-parallel group have all of it,
// for rows of their own.
class SharedExpert {
 public:
  SharedExpert(const ParameterStore& store, const ModelConfig& config, const std::string& name);

  // The weights for many calls.
  struct Packed {
    Linear::Packed gate, in, out;
  };
  Packed pack() const {
    return {weighted() ? gate_.pack_forward() : Linear::Packed(), in_.pack_forward(), out_.pack_forward()};
  }
  // Adds it to out [T, H]. saved may be null. Without `packed` weights are packed here, and with
  // kDecodeRowTile rows read as they lie.
  void forward(const at::Tensor& x, const at::Tensor& out, int64_t row_tile, SharedExpertSaved* saved,
               const Packed& packed) const;
  // Adds to dx [T, H] and to the gradients of what is trained.
  void backward(const at::Tensor& dout, const at::Tensor& x, const SharedExpertSaved& saved,
                const at::Tensor& dx) const;
  void enable_adapters(bool enabled);

 private:
  bool weighted() const { return gate_.weight.defined(); }

  Activation activation_;
  bool gated_;
  Linear gate_, in_, out_;  // the first one may have no weight
};

}  // namespace troupe
