// Names, shapes, groups and initial values of every parameter.
#include "model/decoder_layout.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/adapter_layout.h"
#include "model/attention_layout.h"

namespace troupe {

namespace {

class DecoderLayout : public AttentionLayout {
 public:
  using AttentionLayout::AttentionLayout;

  ParameterLayout build() {
    all_.family = c_.family;
    group({.name = "embed", .trainable = !frozen_, .before_layers = true});
    add_matrix("embed.weight", c_.vocab_size, c_.hidden_size, rows({even(c_.vocab_size)}));
    if (c_.positions == PositionKind::kLearned) {
      add_matrix("pos_embed.weight", c_.max_positions, c_.hidden_size, everywhere(part_.sequence_parallel));
    }
    if (const int64_t size = c_.num_layers * c_.per_layer_size; size > 0) {
      group({.name = "per_layer", .trainable = !frozen_, .before_layers = true});
      add_matrix("per_layer.embed.weight", c_.vocab_size, size, rows({even(c_.vocab_size)}));
      // Read in both passes, the table in one: by itself it is small.
      group({.name = "per_layer.product", .trainable = !frozen_, .before_layers = true});
      add_weight("per_layer.in", size, c_.hidden_size, everywhere(part_.sequence_parallel));
      add_scale("per_layer.norm.weight", c_.per_layer_size, part_.sequence_parallel);
    }
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) add_layer(layer);
    group({.name = "head", .trainable = !frozen_});
    add_norm("norm", false);
    if (c_.head == HeadKind::kValue) {
      if (frozen_) group({.name = "value_head", .trainable = true});
      add_matrix("head.weight", 1, c_.hidden_size, everywhere(false));
      if (c_.value_bias) add("head.bias", {1}, InitialValue::kZero, everywhere(false));
    } else if (!c_.tied_embeddings) {
      add_matrix("head.weight", c_.vocab_size, c_.hidden_size, rows({even(c_.vocab_size)}));
    }
    if (c_.prediction) add_prediction_layers();
    if (c_.vision) add_vision(*c_.vision);
    return std::move(all_);
  }

 private:
  std::vector<CutBlock> mlp_rows(int64_t size) const {
    if (c_.activation == Activation::kClampedSwiglu) {  // pairs stay together
      const CutBlock pairs = even(size);
      return {{2 * pairs.size, 2 * pairs.per, pairs.index}};
    }
    return std::vector<CutBlock>(c_.gated_mlp ? 2 : 1, even(size));
  }

  // Gate and up; interleaved they are one matrix of the checkpoint, too.
  std::vector<int64_t> mlp_matrices(int64_t size) const {
    if (!c_.gated_mlp) return {size};
    return c_.activation == Activation::kClampedSwiglu ? std::vector{2 * size} : std::vector{size, size};
  }

  bool has_xielu(int64_t layer) const {
    return c_.activation == Activation::kXielu && c_.has_mlp(layer) && !c_.is_moe_layer(layer);
  }

  void add_experts_group(int64_t layer, int64_t rank) {
    group({.name = "layers." + std::to_string(layer) + ".experts." + std::to_string(rank),
           .layer = layer,
           .trainable = !frozen_,
           .expert_rank = rank,
           .here = rank == part_.ep_rank});
  }
  void add_vision(const VisionConfig& vision) {
    const ModelConfig layers = vision_layers(vision);
    const bool trained = !frozen_ && vision.trained;
    const int64_t size = vision.hidden_size, merged = size * vision.merge_size * vision.merge_size;
    const size_t first = all_.parameters.size();
    group({.name = "vision.patches", .trainable = trained, .before_layers = true});
    add_matrix("vision.patches.weight", size, vision.patch_values(), everywhere(false));  // a convolution
    if (vision.patch_bias) add("vision.patches.bias", {size}, InitialValue::kZero, everywhere(false));
    if (vision.patch_norm) add_tower_norm("vision.patches.norm", size, vision.norm);
    if (const int64_t side = vision.position_side; side > 0)
      add_matrix("vision.positions.weight", side * side, size, everywhere(false));
    const DecoderPart whole;  // on every rank, as Megatron has it
    DecoderLayout tower(layers, !trained, whole);
    tower.all_ = std::move(all_);
    for (int64_t layer = 0; layer < vision.num_layers; ++layer) tower.add_layer(layer);
    all_ = std::move(tower.all_);
    group({.name = "vision.mergers", .trainable = trained, .before_layers = true});
    const auto merger = [&](const std::string& name, int64_t normed) {
      add_tower_norm(name + ".norm", normed, vision.norm);
      add_linear(name + ".in", merged, merged, true, everywhere(false));
      add_linear(name + ".out", c_.hidden_size, merged, true, everywhere(false));
    };
    if (vision.gated_merger_size > 0) {
      add_gated_merger(vision, merged);
    } else {
      merger("vision.merger", size);
    }
    for (size_t k = 0; k < vision.deepstack_layers.size(); ++k)
      merger("vision.deepstack." + std::to_string(k), merged);
    for (size_t i = first; i < all_.parameters.size(); ++i) on_every_rank(all_.parameters[i].placement);
  }
  void add_tower_norm(const std::string& name, int64_t size, NormKind kind) {
    add(name + ".weight", {size}, InitialValue::kOne, everywhere(false));
    if (kind == NormKind::kLayer) add(name + ".bias", {size}, InitialValue::kZero, everywhere(false));
  }
  void add_gated_merger(const VisionConfig& vision, int64_t merged) {
    const std::string prefix = "vision.merger.";
    const int64_t width = c_.hidden_size, inner = vision.gated_merger_size;
    add_tower_norm(prefix + "norm", vision.hidden_size, vision.norm);
    add_matrix(prefix + "merge.weight", width, merged, everywhere(false));  // a convolution
    add(prefix + "merge.bias", {width}, InitialValue::kZero, everywhere(false));
    add_weight(prefix + "proj", width, width, everywhere(false));
    add_tower_norm(prefix + "proj_norm", width, NormKind::kLayer);
    add_weight(prefix + "in", 2 * inner, width, everywhere(false), {inner, inner});
    add_weight(prefix + "out", width, inner, everywhere(false));
  }
  // What one rank would have: each of them has it, and computes all of its gradient.
  void on_every_rank(Placement& placement) const {
    std::vector<CutBlock> blocks = std::move(placement.blocks);
    for (CutBlock& block : blocks) {
      block.copies = part_.tp;
      block.copy = part_.tp_rank;
    }
    placement = place(std::move(placement.shape), placement.dimension, std::move(blocks));
  }
  void add_layer(int64_t layer) {
    const std::string name = c_.prefix + "layers." + std::to_string(layer);
    const std::string prefix = name + ".";
    const int64_t in_factor = c_.gated_mlp ? 2 : 1;
    const bool own_rows = part_.sequence_parallel;
    group({.name = name,
           .layer = c_.prefix.empty() ? std::optional<int64_t>(layer) : std::nullopt,
           .trainable = !frozen_,
           .before_layers = !c_.prefix.empty()});
    if (c_.has_input_norms(layer)) add_norm(prefix + "attn_norm", own_rows);
    if (c_.is_linear_layer(layer)) {
      add_linear_attention(prefix + linear_attention_name(*c_.linear) + ".");
    } else {
      add_attention(prefix + "attn.", layer);
    }
    if (c_.has_post_norms(layer)) add_norm(prefix + "attn_post_norm", own_rows);
    if (!c_.has_mlp(layer)) return;
    const bool beside = c_.is_moe_layer(layer) && c_.moe->beside_mlp;
    // Beside experts all ranks norm all rows, each for its own part of the MLP.
    if (c_.has_input_norms(layer)) add_norm(prefix + "mlp_norm", own_rows || beside);
    add_buffers(layer, name);
    if (c_.is_moe_layer(layer)) {
      // A rank sees its own columns of each expert's output, and so a part of the routing weights' gradient.
      add_linear(prefix + "moe.router", c_.moe->num_experts, c_.hidden_size, c_.moe->biases,
                 everywhere(true));
      if (beside) {
        add(prefix + "moe.router.scale", {c_.hidden_size}, InitialValue::kOne, everywhere(true));
        add(prefix + "moe.router.expert_scale", {c_.moe->num_experts}, InitialValue::kOne, everywhere(true));
        add_norm(prefix + "moe.in_norm", true);
        add_norm(prefix + "moe.out_norm", own_rows);
        add_norm(prefix + "mlp_out_norm", own_rows);
      }
      if (const int64_t shared = c_.moe->shared_intermediate_size; shared > 0) {
        // Its gate, too, is on all ranks.
        if (c_.moe->shared_gate) add_weight(prefix + "moe.shared.gate", 1, c_.hidden_size, everywhere(true));
        add_weight(prefix + "moe.shared.in", in_factor * shared, c_.hidden_size, rows(mlp_rows(shared)),
                   mlp_matrices(shared));
        add_weight(prefix + "moe.shared.out", c_.hidden_size, shared, columns({even(shared)}));
      }
      const int64_t latent = c_.moe->latent_size, rows_of_experts = latent > 0 ? latent : c_.hidden_size;
      if (latent > 0) {  // on all ranks: each sees the sum of its own experts, or of its part of them
        add_weight(prefix + "moe.latent.in", latent, c_.hidden_size, everywhere(true));
        add_weight(prefix + "moe.latent.out", c_.hidden_size, latent, everywhere(true));
      }
      const int64_t size = c_.moe->intermediate_size;
      const size_t own = target_;
      for (int64_t expert = 0; expert < c_.moe->num_experts; ++expert) {
        if (part_.ep > 1 && expert % part_.experts(c_) == 0)
          add_experts_group(layer, expert / part_.experts(c_));
        const std::string experts = prefix + "moe.experts." + std::to_string(expert);
        const bool biases = c_.moe->biases;
        add_linear(experts + ".in", in_factor * size, rows_of_experts, biases, rows(mlp_rows(size)),
                   mlp_matrices(size));
        add_weight(experts + ".out", rows_of_experts, size, columns({even(size)}));
        // One rank of those that share the matrix adds it to its part of the sum (model/moe.cc), and finds
        // all of its gradient.
        if (biases) add(experts + ".out.bias", {rows_of_experts}, InitialValue::kZero, everywhere(true));
      }
      target_ = own;
    }
    if (!c_.is_moe_layer(layer) || beside) {
      const int64_t size = c_.mlp_size(layer);
      add_linear(prefix + "mlp.in", in_factor * size, c_.hidden_size, c_.mlp_bias, rows(mlp_rows(size)),
                 mlp_matrices(size));
      add_linear(prefix + "mlp.out", c_.hidden_size, size, c_.mlp_bias, columns({even(size)}));
      if (has_xielu(layer)) {  // of all ranks' columns
        add(prefix + "mlp.alpha_p", {1}, InitialValue::kZero, everywhere(true));
        add(prefix + "mlp.alpha_n", {1}, InitialValue::kZero, everywhere(true));
      }
    }
    if (c_.has_post_norms(layer)) add_norm(prefix + "mlp_post_norm", own_rows);
    if (const int64_t size = c_.per_layer_size; size > 0) {  // of a rank's own rows
      add_weight(prefix + "token.in", size, c_.hidden_size, everywhere(own_rows));
      add_weight(prefix + "token.out", c_.hidden_size, size, everywhere(own_rows));
      add_norm(prefix + "token.norm", own_rows);
    }
  }
  // What is loaded and not trained.
  void add_buffers(int64_t layer, const std::string& name) {
    const bool correction = c_.is_moe_layer(layer) && c_.moe->correction_bias;
    if (!correction && !c_.layer_scale && !has_xielu(layer)) return;
    const size_t own = target_;
    group({.name = name + ".buffers", .layer = layer, .trainable = !frozen_, .buffer = true});
    if (correction)
      add(name + ".moe.router.correction_bias", {c_.moe->num_experts}, InitialValue::kZero,
          everywhere(false));
    if (c_.layer_scale) add(name + ".scale", {1}, InitialValue::kOne, everywhere(false));
    if (has_xielu(layer)) {
      add(name + ".mlp.beta", {1}, InitialValue::kOne, everywhere(false));
      add(name + ".mlp.eps", {1}, InitialValue::kZero, everywhere(false));
    }
    target_ = own;
  }

  void add_prediction_layers() {
    DecoderLayout layers(c_, frozen_ || !c_.prediction->trained, part_);
    layers.all_ = std::move(all_);
    for (int64_t layer = 0; layer < c_.prediction_layers(); ++layer)
      layers.add_prediction_layer(c_.num_layers + layer);
    all_ = std::move(layers.all_);
  }
  // Rows are projected where they lie between matrices that ranks share.
  void add_prediction_layer(int64_t layer) {
    add_layer(layer);
    const std::string prefix = "layers." + std::to_string(layer) + ".predict.";
    const bool own_rows = part_.sequence_parallel;
    add_norm(prefix + "token_norm", own_rows);
    add_norm(prefix + "hidden_norm", own_rows);
    add_weight(prefix + "in", c_.hidden_size, 2 * c_.hidden_size, everywhere(own_rows));
    add_norm(prefix + "norm", false);
  }
};

}  // namespace

ParameterLayout decoder_layout(const ModelConfig& config, const std::optional<LoraOptions>& lora,
                               const DecoderPart& part) {
  validate(config, part);
  ParameterLayout layout = DecoderLayout(config, lora.has_value(), part).build();
  if (lora) add_adapters(layout, *lora, part);
  return layout;
}

}  // namespace troupe
