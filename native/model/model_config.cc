// What a resolved decoder must fulfil before anything is made of it.
#include "model/model_config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/gated_delta_kernels.h"

namespace troupe {

namespace {

void positive(const char* name, int64_t value) {
  require(value > 0, ErrorCode::kInvalidModel, "[model] expected ", name, " > 0, got ", value);
}

// The heads of latent attention are laid out [turning, still] in head_dim, values [value, zeros].
void validate_latent(const ModelConfig& c) {
  const LatentConfig& latent = *c.latent;
  positive("latent.key_rank", latent.key_rank);
  positive("latent.still_dim", latent.still_dim);
  positive("latent.value_dim", latent.value_dim);
  require(latent.query_rank >= 0, ErrorCode::kInvalidModel, "[model] expected latent.query_rank >= 0, got ",
          latent.query_rank);
  require(c.num_kv_heads == c.num_heads, ErrorCode::kInvalidModel,
          "[model] latent attention makes a key for each of the ", c.num_heads,
          " heads: expected as many num_kv_heads, got ", c.num_kv_heads);
  const int64_t widest = std::max(latent.still_dim + latent.rotary_dim, latent.value_dim);
  require(c.head_dim >= widest, ErrorCode::kInvalidModel, "[model] expected head_dim of at least ", widest,
          " for the keys and values of latent attention, got ", c.head_dim);
  require(c.positions == PositionKind::kRope && c.second_rope_layers.empty() && !c.qk_norm,
          ErrorCode::kInvalidModel,
          "[model] latent attention has one set of rotary positions and no norms of queries and keys");
  require(latent.rotary_dim == 2 * static_cast<int64_t>(c.rope_inv_freq.size()), ErrorCode::kInvalidModel,
          "[model] expected latent.rotary_dim of twice the ", c.rope_inv_freq.size(),
          " rotary frequencies, got ", latent.rotary_dim);
}

void validate_linear(const ModelConfig& c) {
  const LinearAttentionConfig& linear = *c.linear;
  positive("linear.key_heads", linear.key_heads);
  positive("linear.value_heads", linear.value_heads);
  if (linear.rule == LinearRule::kShortConv) {
    require(linear.key_heads == linear.value_heads && linear.key_dim == 0 && linear.value_dim == 1,
            ErrorCode::kInvalidModel,
            "[model] expected a short convolution of as many key heads as value heads, key_dim 0 and "
            "value_dim 1, got ",
            linear.key_heads, ", ", linear.value_heads, ", ", linear.key_dim, " and ", linear.value_dim);
  } else {
    positive("linear.key_dim", linear.key_dim);
    positive("linear.value_dim", linear.value_dim);
  }
  require(linear.conv_width >= 1 && linear.conv_width <= kernels::kConvWidth, ErrorCode::kInvalidModel,
          "[model] expected linear.conv_width of 1 to ", kernels::kConvWidth, ", got ", linear.conv_width);
  require(linear.value_heads % linear.key_heads == 0, ErrorCode::kInvalidModel,
          "[model] linear.value_heads (", linear.value_heads, ") must be a multiple of linear.key_heads (",
          linear.key_heads, ")");
  require(linear.key_dim <= kernels::kMaxDeltaKeyDim, ErrorCode::kInvalidModel,
          "[model] expected linear.key_dim of at most ", kernels::kMaxDeltaKeyDim, ", got ", linear.key_dim);
  require(linear.least_step >= 0 && std::isfinite(linear.least_step), ErrorCode::kInvalidModel,
          "[model] expected a finite linear.least_step >= 0, got ", linear.least_step);
  require(linear.beta_scale > 0 && std::isfinite(linear.beta_scale), ErrorCode::kInvalidModel,
          "[model] expected a finite linear.beta_scale > 0, got ", linear.beta_scale);
  require(linear.norm_eps > 0 && std::isfinite(linear.norm_eps), ErrorCode::kInvalidModel,
          "[model] expected a finite linear.norm_eps > 0, got ", linear.norm_eps);
  require(static_cast<int64_t>(c.linear_layers.size()) == c.num_layers, ErrorCode::kInvalidModel,
          "[model] expected one linear_layers entry per layer (", c.num_layers, "), got ",
          c.linear_layers.size());
  require(!c.latent && c.norm == NormKind::kRms, ErrorCode::kInvalidModel,
          "[model] layers of linear attention beside latent attention or LayerNorm are not supported");
}

void validate_vision(const ModelConfig& c) {
  const VisionConfig& v = *c.vision;
  positive("vision.num_layers", v.num_layers);
  positive("vision.hidden_size", v.hidden_size);
  positive("vision.num_heads", v.num_heads);
  positive("vision.intermediate_size", v.intermediate_size);
  positive("vision.patch_size", v.patch_size);
  positive("vision.temporal_patch_size", v.temporal_patch_size);
  require(v.position_side >= 0 && v.window_side >= 0, ErrorCode::kInvalidModel,
          "[model] expected vision.position_side and window_side >= 0, got ", v.position_side, " and ",
          v.window_side);
  require(v.gated_merger_size >= 0 && (v.gated_merger_size == 0 || v.deepstack_layers.empty()),
          ErrorCode::kInvalidModel,
          "[model] expected vision.gated_merger_size >= 0, and 0 beside vision.deepstack_layers, got ",
          v.gated_merger_size);
  // Tiles of rows hold whole tokens.
  require(v.merge_size >= 1 && kRowTile % (v.merge_size * v.merge_size) == 0, ErrorCode::kInvalidModel,
          "[model] expected vision.merge_size whose square divides ", kRowTile, ", got ", v.merge_size);
  require(v.hidden_size % v.num_heads == 0 && v.head_dim() % 4 == 0 &&
              static_cast<int64_t>(v.rope_inv_freq.size()) == v.head_dim() / 4,
          ErrorCode::kInvalidModel, "[model] expected vision.hidden_size (", v.hidden_size,
          ") of vision.num_heads (", v.num_heads,
          ") heads whose size divides by 4, with as many frequencies, got ", v.rope_inv_freq.size());
  require(v.pixel_mean.size() == 3 && v.pixel_std.size() == 3, ErrorCode::kInvalidModel,
          "[model] expected vision.pixel_mean and pixel_std of 3 channels, got ", v.pixel_mean.size(),
          " and ", v.pixel_std.size());
  for (const double deviation : v.pixel_std)
    require(deviation > 0, ErrorCode::kInvalidModel, "[model] expected vision.pixel_std > 0, got ",
            deviation);
  require(static_cast<int64_t>(v.deepstack_layers.size()) <= c.num_layers, ErrorCode::kInvalidModel,
          "[model] expected at most ", c.num_layers, " vision.deepstack_layers, one for each layer, got ",
          v.deepstack_layers.size());
  const auto ascending = [&](const std::vector<int64_t>& layers, const char* what) {
    int64_t before = -1;
    for (const int64_t layer : layers) {
      require(layer > before && layer < v.num_layers, ErrorCode::kInvalidModel, "[model] expected vision.",
              what, " ascending below ", v.num_layers, ", got ", layer);
      before = layer;
    }
  };
  ascending(v.deepstack_layers, "deepstack_layers");
  ascending(v.whole_layers, "whole_layers");
  require(v.image_token >= 0 && v.image_token < c.vocab_size, ErrorCode::kInvalidModel,
          "[model] expected vision.image_token below the vocabulary of ", c.vocab_size, ", got ",
          v.image_token);
  require(v.rope_axes.size() == c.rope_inv_freq.size() &&
              std::all_of(v.rope_axes.begin(), v.rope_axes.end(),
                          [](int64_t axis) { return axis >= 0 && axis < 3; }),
          ErrorCode::kInvalidModel, "[model] expected one of three vision.rope_axes for each of the ",
          c.rope_inv_freq.size(), " rotary frequencies, got ", v.rope_axes.size());
  require(c.positions == PositionKind::kRope && c.second_rope_layers.empty() && !c.latent &&
              c.head == HeadKind::kLm,
          ErrorCode::kInvalidModel,
          "[model] a tower for images needs a language model with one set of rotary positions");
}

// What Gemma 4 has beside other families, of which it has no other parts.
void validate_second_heads(const ModelConfig& c) {
  const bool plain = !c.latent && !c.linear && !c.vision && !c.prediction && !c.attention_gate &&
                     !c.whole_qk_norm && !c.rope_pairs && c.bare_layers.empty() &&
                     c.positions == PositionKind::kRope && c.norm == NormKind::kRms && c.input_norms;
  const bool beside = c.moe && c.moe->beside_mlp;
  require(
      plain || !(c.second_heads || c.values_from_keys || c.value_norm || c.layer_scale ||
                 c.shared_kv_layers > 0 || c.per_layer_size > 0 || beside),
      ErrorCode::kInvalidModel,
      "[model] heads that differ between layers (second_heads), values_from_keys, value_norm, layer_scale, "
      "shared_kv_layers, per_layer_size and experts beside an MLP (beside_mlp) need a causal decoder of "
      "RMSNorms and rotary positions, without latent or linear attention, gates of attention, images and "
      "layers for further tokens");
  require(
      c.qk_norm || !(c.value_norm || c.values_from_keys || c.shared_kv_layers > 0), ErrorCode::kInvalidModel,
      "[model] value_norm, values_from_keys and shared_kv_layers need norms of queries and keys (qk_norm)");
  require(!beside || (c.post_norms && c.gated_mlp && !c.mlp_bias && !c.moe->biases), ErrorCode::kInvalidModel,
          "[model] experts beside an MLP (beside_mlp) need post_norms and a gated MLP without biases");
  if (c.second_heads) {
    positive("second_heads.num_kv_heads", c.second_heads->num_kv_heads);
    positive("second_heads.head_dim", c.second_heads->head_dim);
    require(c.num_heads % c.second_heads->num_kv_heads == 0 && c.second_heads->head_dim % 2 == 0,
            ErrorCode::kInvalidModel,
            "[model] expected second_heads of a head_dim that is even and "
            "num_kv_heads that divide num_heads (",
            c.num_heads, "), got ", c.second_heads->head_dim, " and ", c.second_heads->num_kv_heads);
  }
  require(c.per_layer_size >= 0 && c.shared_mlp_size >= 0, ErrorCode::kInvalidModel,
          "[model] expected per_layer_size and shared_mlp_size >= 0, got ", c.per_layer_size, " and ",
          c.shared_mlp_size);
  require(c.shared_kv_layers >= 0 && c.shared_kv_layers < c.num_layers, ErrorCode::kInvalidModel,
          "[model] expected shared_kv_layers of 0 to ", c.num_layers - 1, ", got ", c.shared_kv_layers);
  for (int64_t layer = c.num_layers - c.shared_kv_layers; layer < c.num_layers; ++layer)
    require(c.has_second_rope(c.keys_of(layer)) == c.has_second_rope(layer), ErrorCode::kInvalidModel,
            "[model] layer ", layer,
            " shares keys (shared_kv_layers), but no layer of its kind before those "
            "that do has any to give");
}

}  // namespace

ModelConfig ModelConfig::at_layer(int64_t layer) const {
  ModelConfig config = *this;
  const HeadShape own = heads(layer);
  config.num_kv_heads = own.num_kv_heads;
  config.head_dim = own.head_dim;
  config.values_from_keys = values_from_keys && !has_second_rope(layer);
  config.intermediate_size = mlp_size(layer);
  return config;
}

ModelConfig over_latents(ModelConfig config) {
  LatentConfig& latent = *config.latent;
  latent.absorbed = true;
  config.num_kv_heads = 1;
  config.head_dim = latent.row_dim();
  return config;
}

ModelConfig vision_layers(const VisionConfig& vision) {
  ModelConfig layers;
  layers.family = "vision";
  layers.hidden_size = vision.hidden_size;
  layers.num_layers = vision.num_layers;
  layers.num_heads = layers.num_kv_heads = vision.num_heads;
  layers.head_dim = vision.head_dim();
  layers.intermediate_size = vision.intermediate_size;
  layers.norm = vision.norm;
  layers.norm_eps = vision.norm_eps;
  layers.attention_scale = 1 / std::sqrt(static_cast<double>(vision.head_dim()));
  layers.sliding_windows.assign(static_cast<size_t>(vision.num_layers), 0);
  layers.qkv_bias = vision.qkv_bias;
  layers.output_bias = layers.mlp_bias = vision.layer_bias;
  layers.gated_mlp = vision.gated_mlp;
  layers.activation = vision.activation;
  // The first half of a head's pairs turns by the row of a patch, the second by its column.
  layers.rope_inv_freq = vision.rope_inv_freq;
  layers.rope_inv_freq.insert(layers.rope_inv_freq.end(), vision.rope_inv_freq.begin(),
                              vision.rope_inv_freq.end());
  layers.prefix = "vision.";
  layers.causal = false;
  return layers;
}

void validate(const ModelConfig& c) {
  positive("vocab_size", c.vocab_size);
  positive("hidden_size", c.hidden_size);
  positive("num_layers", c.num_layers);
  positive("num_heads", c.num_heads);
  positive("num_kv_heads", c.num_kv_heads);
  positive("head_dim", c.head_dim);
  positive("intermediate_size", c.intermediate_size);
  positive("max_positions", c.max_positions);
  require(c.num_heads % c.num_kv_heads == 0, ErrorCode::kInvalidModel, "[model] num_heads (", c.num_heads,
          ") must be a multiple of num_kv_heads (", c.num_kv_heads, ")");
  require(static_cast<int64_t>(c.sliding_windows.size()) == c.num_layers, ErrorCode::kInvalidModel,
          "[model] expected one sliding window per layer (", c.num_layers, "), got ",
          c.sliding_windows.size());
  if (c.positions == PositionKind::kRope) {
    require(c.latent || c.head_dim % 2 == 0, ErrorCode::kInvalidModel,
            "[model] RoPE needs an even head_dim, got ", c.head_dim);
    const auto frequencies = [&](const std::vector<double>& inv_freq, int64_t least, int64_t head_dim) {
      const auto count = static_cast<int64_t>(inv_freq.size());
      require(count >= least && 2 * count <= head_dim, ErrorCode::kInvalidModel, "[model] expected ", least,
              " to ", head_dim / 2, " rotary frequencies, got ", count);
    };
    frequencies(c.rope_inv_freq, 1, c.head_dim);
    frequencies(c.second_rope_inv_freq, 0, c.second_heads ? c.second_heads->head_dim : c.head_dim);
    require(c.second_rope_layers.empty() || static_cast<int64_t>(c.second_rope_layers.size()) == c.num_layers,
            ErrorCode::kInvalidModel, "[model] expected one second_rope_layers entry per layer (",
            c.num_layers, "), got ", c.second_rope_layers.size());
  } else {
    require(c.rope_inv_freq.empty() && c.second_rope_layers.empty(), ErrorCode::kInvalidModel,
            "[model] expected no rotary frequencies beside learned positions or none, got ",
            c.rope_inv_freq.size(), " and second_rope_layers of ", c.second_rope_layers.size());
  }
  require(c.input_norms || (c.post_norms && c.norm == NormKind::kRms), ErrorCode::kInvalidModel,
          "[model] a decoder without input norms (input_norms) needs RMSNorms behind attention and MLP "
          "(post_norms)");
  require(
      !c.whole_qk_norm || !(c.qk_norm || c.latent || c.attention_gate), ErrorCode::kInvalidModel,
      "[model] norms over all heads (whole_qk_norm) beside those of each head, latent attention or gates of "
      "attention are not supported");
  require(c.logits_scaling > 0 && std::isfinite(c.logits_scaling), ErrorCode::kInvalidModel,
          "[model] expected a finite logits_scaling > 0, got ", c.logits_scaling);
  require(std::isfinite(c.residual_scale) && (c.residual_scale == 1 || !c.post_norms),
          ErrorCode::kInvalidModel,
          "[model] expected a finite residual_scale, and 1 beside norms behind attention and MLP "
          "(post_norms), got ",
          c.residual_scale);
  require(
      !c.rope_pairs || (c.positions == PositionKind::kRope && c.second_rope_layers.empty() &&
                        !(c.qk_norm || c.whole_qk_norm || c.latent || c.attention_gate)),
      ErrorCode::kInvalidModel,
      "[model] heads that turn in pairs side by side (rope_pairs) beside norms of queries and keys, latent "
      "attention, gates of attention or a second set of rotary positions are not supported");
  if (c.latent) validate_latent(c);
  if (c.linear) validate_linear(c);
  require(!c.attention_gate || !c.latent, ErrorCode::kInvalidModel,
          "[model] gates of attention (attention_gate) beside latent attention are not supported");
  require(!c.gates_apart || (c.attention_gate && !c.values_from_keys && c.shared_kv_layers == 0),
          ErrorCode::kInvalidModel,
          "[model] a matrix of their own (gates_apart) have gates of attention (attention_gate) alone, whose "
          "layers have keys and values");
  if (c.vision) validate_vision(c);
  validate_second_heads(c);
  if (c.prediction) {
    positive("prediction.layers", c.prediction->layers);
    require(c.head == HeadKind::kLm && c.positions == PositionKind::kRope && c.norm == NormKind::kRms,
            ErrorCode::kInvalidModel,
            "[model] layers that predict further tokens need a causal LM with rotary positions and RMSNorms");
  }
  require(c.bare_layers.empty() ||
              (static_cast<int64_t>(c.bare_layers.size()) == c.num_layers && c.input_norms && !c.post_norms),
          ErrorCode::kInvalidModel, "[model] expected one bare_layers entry per layer (", c.num_layers,
          "), and input norms alone, got ", c.bare_layers.size());
  require(c.gated_mlp || c.activation != Activation::kClampedSwiglu, ErrorCode::kInvalidModel,
          "[model] the clamped SwiGLU needs a gate (gated_mlp)");
  require(
      c.activation != Activation::kXielu || (!c.gated_mlp && !c.moe && c.per_layer_size == 0),
      ErrorCode::kInvalidModel,
      "[model] xIELU needs MLPs without a gate (gated_mlp) in the place of experts, and no per_layer_size");
  if (c.moe) {
    require(c.input_norms, ErrorCode::kInvalidModel, "[model] experts need a norm before them (input_norms)");
    positive("moe.num_experts", c.moe->num_experts);
    positive("moe.intermediate_size", c.moe->intermediate_size);
    require(c.moe->shared_intermediate_size >= 0, ErrorCode::kInvalidModel,
            "[model] expected moe.shared_intermediate_size >= 0, got ", c.moe->shared_intermediate_size);
    require(c.moe->latent_size >= 0, ErrorCode::kInvalidModel, "[model] expected moe.latent_size >= 0, got ",
            c.moe->latent_size);
    require(c.moe->normalizer_eps >= 0 && std::isfinite(c.moe->normalizer_eps), ErrorCode::kInvalidModel,
            "[model] expected a finite moe.normalizer_eps >= 0, got ", c.moe->normalizer_eps);
    require(c.moe->top_k >= 1 && c.moe->top_k <= c.moe->num_experts, ErrorCode::kInvalidModel,
            "[model] expected moe.top_k between 1 and ", c.moe->num_experts, ", got ", c.moe->top_k);
    const int64_t groups = c.moe->groups, top = c.moe->top_groups, best = c.moe->group_best;
    positive("moe.group_best", best);
    require(groups >= 1 && c.moe->num_experts % groups == 0 &&
                (groups == 1 || c.moe->num_experts / groups >= best),
            ErrorCode::kInvalidModel, "[model] expected moe.groups to divide the ", c.moe->num_experts,
            " experts into parts of ", best, " (moe.group_best) or more, got ", groups);
    require(top >= 1 && top <= groups && top * (c.moe->num_experts / groups) >= c.moe->top_k,
            ErrorCode::kInvalidModel, "[model] expected moe.top_groups of 1 to ", groups,
            " groups with at least the ", c.moe->top_k, " experts that a token chooses, got ", top);
    require(c.moe->routed_scale > 0, ErrorCode::kInvalidModel, "[model] expected moe.routed_scale > 0, got ",
            c.moe->routed_scale);
    require(static_cast<int64_t>(c.moe_layers.size()) == c.num_layers, ErrorCode::kInvalidModel,
            "[model] expected one moe_layers entry per layer (", c.num_layers, "), got ",
            c.moe_layers.size());
  }
}

}  // namespace troupe
