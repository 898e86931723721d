// The MLP of a mixture of experts: routing, grouped products, and their sum per token.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "megatron/expert_rows.h"
#include "model/decoder_layout.h"
#include "model/expert_latent.h"
#include "model/expert_routing.h"
#include "model/layers.h"
#include "model/shared_expert.h"

namespace troupe {

// What the backward pass of a mixture of experts needs. S = T k slots (model/expert_routing.h), of which S'
// are of experts of this rank; T rows of all ranks that share the experts.
struct MoeSaved {
  ExpertRouting routing;
  at::Tensor inner;          // [S', 2F] (without a gate [S', F]): what the experts' activation gets
  ExpertLatentSaved latent;  // of all rows
  SharedExpertSaved shared;  // of this rank's rows
  NormStats in_norm;         // of all rows
};

// out = sum over the chosen experts of weight * expert(x), plus the shared expert where the family has one.
// The rows of an expert are computed together, with its weights packed once per pass (kernels/gemm.h). Each
// thread takes whole experts; where they are too few to keep all threads busy, threads share the rows of one
// expert. A token's result depends neither on its neighbours nor on how many of them chose the same expert:
// where a BLAS multiplies, whose rounding depends on the shape, every product has the same one.
//
// Where the family has one, experts see a latent of a token, and their sum is one (expert_latent.h); or what
// a norm of their own makes of a row that no norm came before (beside_mlp), which the router takes as it is.
//
// On a GPU they are grouped products (kernels/grouped_gemm.h), and with all experts the host never waits for
// the choices of a router. Where ranks share experts it does, once per forward pass: how many rows are a
// rank's own is a shape ([Note: own slots on a GPU] in moe_grouped.cc).
class MoeMlp {
 public:
  MoeMlp() = default;
  MoeMlp(const ParameterStore& store, const ModelConfig& config, int64_t layer, const DecoderPart& part = {});

  // Where the part has some of the experts, x, out and their gradients are this rank's rows, perhaps none,
  // and all ranks that share them make the same calls at the same time. What this rank finds of the router's
  // gradient is what its own experts make of it, for the rows of all.
  struct Pass {
    ExpertRows rows;
    CollectiveLabel label;
    RouterWork router;
  };
  // The weights of all experts that are here, and of the router, for many calls.
  struct Packed {
    Linear::Packed router;
    std::vector<ops::PackedMatrix> in, out;
    ExpertLatent::Packed latent;
    SharedExpert::Packed shared;
  };
  Packed pack() const;
  // out [T, H] = moe(x [T, H]); saved may be null. Without `packed` weights are packed here, and with
  // kDecodeRowTile rows read as they lie.
  void forward(const at::Tensor& x, const at::Tensor& out, int64_t row_tile, MoeSaved* saved,
               const Pass& pass = {}, const Packed& packed = {}) const;
  // dx [T, H] is overwritten; the gradients of weights that are trained are added to.
  void backward(const at::Tensor& dout, const at::Tensor& x, const MoeSaved& saved, const at::Tensor& dx,
                const Pass& pass = {}) const;
  void enable_adapters(bool enabled) {
    if (latent_) latent_->enable_adapters(enabled);
    if (shared_) shared_->enable_adapters(enabled);
  }

 private:
  // The experts that are chosen.
  void forward_chosen(const at::Tensor& x, const at::Tensor& out, int64_t row_tile, MoeSaved& state,
                      const Pass& pass, const Packed& packed) const;
  void backward_chosen(const at::Tensor& dout, const at::Tensor& x, const MoeSaved& saved,
                       const at::Tensor& dx, const Pass& pass) const;
  // The same over all rows that there are; given: see Router::route.
  void forward_part(const at::Tensor& x, const at::Tensor& out, int64_t row_tile, MoeSaved& state,
                    const Pass& pass, const Packed& packed, const at::Tensor& given) const;
  void backward_part(const at::Tensor& dout, const at::Tensor& x, const MoeSaved& saved, const at::Tensor& dx,
                     const Pass& pass) const;
  // Of rows that the experts see (x itself, or its latents), their weighted sum, and back: the second returns
  // the gradient by the routing weights [T, k], and overwrites dx.
  void forward_experts(const at::Tensor& x, const at::Tensor& sum, int64_t row_tile, MoeSaved& state,
                       const Packed& packed) const;
  at::Tensor backward_experts(const at::Tensor& d_sum, const at::Tensor& x, const MoeSaved& saved,
                              const at::Tensor& dx) const;
  // The same on a GPU, in one product for each of the two matrices, over the slots of experts that are here
  // and, where others are elsewhere, one place behind them that stands for theirs.
  bool grouped(const at::Tensor& x) const;
  void forward_grouped(const at::Tensor& x, const at::Tensor& sum, MoeSaved& state) const;
  at::Tensor backward_grouped(const at::Tensor& d_sum, const at::Tensor& x, const MoeSaved& saved,
                              const at::Tensor& dx) const;
  // Slots [first, first + count) are those of experts of this rank.
  struct OwnSlots {
    int64_t first, count;
  };
  OwnSlots own_slots(const ExpertRouting& routing) const;
  // target [T, H] = sum over a token's slots of weights * rows (weights may be undefined: 1), choices in
  // order. places [T, k]: of the slots in `rows`.
  static void sum_slots(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& weights,
                        const at::Tensor& target);
  static at::Tensor places_of(const at::Tensor& slot_of, const OwnSlots& own);
  // Leaves in the routing of a GPU the slots of experts that are here.
  void keep_own(ExpertRouting& routing) const;
  // Zeros in the place of the slots of others.
  void clear_other(const at::Tensor& slots) const;
  // Of every slot its place among those of this rank, and behind all of them where it is another rank's.
  at::Tensor own_places(const ExpertRouting& routing) const;
  // On a GPU: of every slot its expert among those that are here, some expert for the place behind them.
  at::Tensor experts_of(const ExpertRouting& routing) const;
  // The rows of one expert, the index of one that is here: writes its rows of `inner` and of `outputs` [S',
  // H].
  void expert_forward(size_t expert, const at::Tensor& x, const MoeSaved& state, const at::Tensor& outputs,
                      const ops::PackedMatrix& in, const ops::PackedMatrix& out) const;
  // Returns d_weights of the expert's slots [R]; writes the expert's rows of d_gathered.
  at::Tensor expert_backward(size_t expert, const at::Tensor& dout, const at::Tensor& x,
                             const MoeSaved& saved, const at::Tensor& d_gathered) const;
  template <typename Body>
  void for_each_expert(const ExpertRouting& routing, const at::Device& device, Body&& body) const;

  Activation activation_ = Activation::kSilu;
  bool gated_ = true;
  int64_t intermediate_size_ = 0;
  Router router_;
  int64_t first_ = 0;             // expert of this rank
  bool all_ = true;               // every expert is here
  std::vector<Linear> in_, out_;  // of the experts that are here
  // All of them, [E, out, in], where they lie at equal distances, else undefined: weights and their
  // gradients.
  struct Stacks {
    at::Tensor in, out, in_grad, out_grad;
    at::Tensor in_bias, out_bias, in_bias_grad, out_bias_grad;  // [E, out]
  } stacks_;
  Norm in_norm_;  // without a weight: none
  std::optional<ExpertLatent> latent_;
  std::optional<SharedExpert> shared_;
};

}  // namespace troupe
