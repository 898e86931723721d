// Which experts a token goes to, and where its copies lie. Knows nothing of what an expert computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "batch/routed_experts.h"
#include "model/layers.h"

namespace troupe {

class ExpertLoad;
class RouterZLoss;

// What a pass asks of the router of a layer, beside the choice. T rows of this rank.
struct RouterWork {
  ExpertLoad* load = nullptr;  // where its choices are counted; null: nowhere
  int64_t layer = 0;
  at::Tensor tokens;  // [T] float32: how many tokens of the batch a row stands for
  // [E] float32: added to the gradient by the probabilities of every token; undefined: nothing
  at::Tensor balance;
  RouterZLoss* z_loss = nullptr;  // whose gradient by the logits of every token is added; null: nothing
  // [T, layers with experts * k] of whole numbers, of this block [T, k]: what to choose instead (undefined:
  // nothing), and where to write what has been chosen (undefined: nowhere).
  at::Tensor given, record;
};

// What is kept of a token's choices; of a model without experts: no layers.
RoutingShape routing_shape(const ModelConfig& config);

// The choices of T tokens among E experts, k each. A slot is one (token, choice); slots are sorted by expert,
// and by token within an expert, without padding.
struct ExpertRouting {
  at::Tensor scores;     // [T, E] float32: softmax of the router's logits, or the sigmoid of each
  at::Tensor experts;    // [T, k] int64 chosen, the likeliest first
  at::Tensor weights;    // [T, k] float32 of their outputs
  at::Tensor choice_of;  // [T k] int64: slot -> token * k + choice
  at::Tensor token_of;   // [T k] int64: slot -> token
  at::Tensor slot_of;    // [T, k] int64: the other way round
  // [E + 1]: slots of expert e are offsets[e] .. offsets[e + 1]. Either known to the host, or int32 where x
  // is.
  std::vector<int64_t> offsets;
  at::Tensor starts;

  int64_t slots() const { return token_of.size(0); }
};

// Linear map to E logits, and one of
// - softmax over all of them, the k largest, renormalised to 1 when the config says so (Mixtral: Jiang et al.
//   2024, arXiv:2401.04088; Qwen3 MoE: norm_topk_prob);
// - the sigmoid of each. The k largest are those of scores + correction bias; weights are of the scores alone
//   (DeepSeek-V3: DeepSeek-AI 2024, arXiv:2412.19437, sections 2.1.2 and 4.2).
// Either within the groups of experts whose best scores have the largest sums: of the two best ones in
// DeepSeek-V3, of the best one in DeepSeek-V2 (arXiv:2405.04434, section 2.2.2). Both of these scale the
// weights by routed_scale and have their logits in float32 from the product on.
// Gemma 4 (beside_mlp; Gemma4TextRouter of transformers) norms a row, without a weight, times scale / sqrt(H)
// before the product, and multiplies the weight of each expert by a factor of its own.
class Router {
 public:
  Router() = default;
  Router(const ParameterStore& store, const ModelConfig& config, const std::string& name);

  // The weight for many calls.
  Linear::Packed pack() const { return product().pack_forward(); }
  // x [T, H], in tiles of `row_tile` rows: a token's choices do not depend on its neighbours. given [T, k]:
  // the choices, whose weights are then of the logits as they are now (routing replay: Zheng et al. 2025,
  // arXiv:2507.18071, section 5.3); undefined: the k likeliest. on_device: the host does not learn how many
  // tokens an expert has, for which it would wait.
  ExpertRouting route(const at::Tensor& x, int64_t row_tile, const Linear::Packed& weight,
                      const at::Tensor& given = {}, bool on_device = false) const;
  // d_weights [T, k]: the loss's gradient by `weights`. Adds to the router's gradient and to dx [T, H]. The
  // rows of `work` are those from `first` on.
  void backward(const at::Tensor& d_weights, const at::Tensor& x, const ExpertRouting& routing,
                const RouterWork& work, int64_t first, const at::Tensor& dx) const;
  // Counts and records what has been chosen for the rows of `work`, those from `first` on.
  void count(const ExpertRouting& routing, const RouterWork& work, int64_t first) const;

 private:
  // x [T, H] -> [T, E] in logit_type().
  at::Tensor logits_of(const at::Tensor& x, int64_t row_tile, const Linear::Packed& weight) const;
  void sort_slots(ExpertRouting& routing, bool on_device) const;
  // [T, k], the likeliest first.
  at::Tensor choose(const at::Tensor& scores) const;
  // The dtype that logits are computed in.
  at::ScalarType logit_type() const;
  // linear_ with its weight in that dtype.
  Linear product() const;
  // What makes the product's input of a row; without a weight: nothing. Its gradient is not that of scale_.
  Norm input_norm() const;
  // [T, k] of the chosen experts; undefined: none.
  at::Tensor expert_scales(const at::Tensor& experts) const;
  // Adds to the gradients of what the weights are made with, from d_weights; returned: the gradient by the
  // chosen scores.
  at::Tensor weights_backward(const at::Tensor& d_weights, const ExpertRouting& routing) const;

  MoeConfig config_;
  Linear linear_;
  at::Tensor correction_bias_;  // [E] float32; undefined: none
  ops::NormSpec norm_;
  at::Tensor scale_, scale_grad_;                // [H]; undefined: a row goes into the product as it is
  at::Tensor expert_scale_, expert_scale_grad_;  // [E]; undefined: none
};

}  // namespace troupe
