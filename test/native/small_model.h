#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "model/model_config.h"

// Models of every kind of block, small enough to be computed in milliseconds.
namespace troupe::test {

constexpr int64_t kVocabulary = 50;

// A window per layer; where there is a second set of frequencies those that have one turn by it.
inline void give_windows(ModelConfig& c, std::vector<int64_t> windows) {
  c.num_layers = static_cast<int64_t>(windows.size());
  c.sliding_windows = std::move(windows);
  if (c.second_rope_inv_freq.empty()) return;
  c.second_rope_layers.clear();
  for (const int64_t window : c.sliding_windows) c.second_rope_layers.push_back(window > 0);
}

// Heads of the sizes that latent attention needs; of the frequencies the first are kept.
inline void give_latent(ModelConfig& c, const LatentConfig& latent) {
  c.latent = latent;
  c.num_kv_heads = c.num_heads;
  c.head_dim = std::max(latent.still_dim + latent.rotary_dim, latent.value_dim);
  c.rope_inv_freq.resize(static_cast<size_t>(latent.rotary_dim / 2), 0.3);
}

// Layers of the gated delta rule, and gates of attention in the others. Two key heads, four value heads.
inline void give_delta(ModelConfig& c, std::vector<bool> layers, DeltaMatrices matrices) {
  c.attention_gate = c.qk_norm = c.norm_unit_offset = true;
  c.linear = LinearAttentionConfig{LinearRule::kGatedDelta, 2, 4, 6, 5, matrices};
  c.linear_layers = std::move(layers);
  c.rope_inv_freq = {1, 0.1};
}

// Layers of Mamba 2, and attention without positions in the others, with MLPs without gates. Two groups, four
// heads.
inline void give_mamba2(ModelConfig& c, std::vector<bool> layers, std::vector<bool> bare) {
  c.linear = LinearAttentionConfig{LinearRule::kMamba2, 2, 4, 6, 5, {}, true, 0.3};
  c.linear_layers = std::move(layers);
  c.bare_layers = std::move(bare);
  c.positions = PositionKind::kNone;
  c.rope_inv_freq.clear();
  c.gated_mlp = false;
  c.activation = Activation::kSquaredRelu;
}

// Layers of a short convolution, and attention with norms of queries and keys in the others.
inline void give_short_conv(ModelConfig& c, std::vector<bool> layers, bool bias) {
  c.linear = LinearAttentionConfig{LinearRule::kShortConv, 24, 24, 0, 1};
  c.linear->conv_bias = bias;
  c.linear->conv_width = 3;
  c.linear_layers = std::move(layers);
  c.qk_norm = true;
}

// Of linear attention; a short convolution keeps its channels.
inline void give_linear_heads(ModelConfig& c, int64_t key_heads, int64_t value_heads) {
  if (!c.linear || c.linear->rule == LinearRule::kShortConv) return;
  c.linear->key_heads = key_heads;
  c.linear->value_heads = value_heads;
}

// With latent attention every head has a key of its own.
inline void give_heads(ModelConfig& c, int64_t heads, int64_t key_heads) {
  c.num_heads = heads;
  c.num_kv_heads = c.latent ? heads : key_heads;
  if (c.second_heads) c.second_heads->num_kv_heads = heads;
}

// What all of Gemma 4 have: heads that differ between layers with a window and the others, where values are
// keys.
inline void give_gemma4(ModelConfig& c, std::vector<int64_t> windows) {
  c.num_layers = static_cast<int64_t>(windows.size());
  c.post_norms = c.tied_embeddings = c.qk_norm = c.value_norm = c.layer_scale = c.values_from_keys = true;
  c.activation = Activation::kGeluTanh;
  c.embedding_scale = std::sqrt(24.0);
  c.final_softcap = 6;
  c.second_heads = HeadShape{4, 6};
  c.rope_inv_freq = {1, 0.1, 0, 0};
  c.second_rope_inv_freq = {1, 0.3, 0.2};
  c.second_rope_layers.clear();
  for (const int64_t window : windows) c.second_rope_layers.push_back(window > 0);
  c.sliding_windows = std::move(windows);
}

// DeepSeek-V3's, on the second of two layers.
inline void give_sigmoid_experts(ModelConfig& c) {
  c.moe = MoeConfig{8, 3, 16, true, 12, false, RouterScore::kSigmoid, true, 4, 2, 1.5};
  c.moe->wide_logits = true;
  c.moe_layers = {false, true};
}

// DeepSeek-V2's.
inline void give_softmax_groups(ModelConfig& c) {
  c.moe = MoeConfig{8, 3, 16, false, 12, false, RouterScore::kSoftmax, false, 4, 2, 1.5};
  c.moe->group_best = 1;
  c.moe->wide_logits = true;
  c.moe_layers = {false, true};
}

// qwen2 (biases), qwen3 (norms of q and k), gpt2, gemma2, qwen3_moe (one dense layer and one of experts),
// glm4_moe (the same with DeepSeek-V3's router and shared expert, and heads of which a half turns), gemma3
// (norms of q and k that add 1, layers with windows that turn faster), smollm3 (a layer that does not turn),
// deepseek_v3 (latent attention with biases, and the experts of glm4_moe), deepseek_v2 (the same with softmax
// scores in groups that rank by their best expert), latent (dense, queries without a latent, values wider
// than keys, of which halves turn), gpt_oss (sinks of attention, a window on one of two layers of experts
// with biases and the clamped SwiGLU), qwen3_5 (a layer of the gated delta rule, one of attention with
// gates), qwen3_next (the other way round, the second with experts, its matrix by key heads), mamba2 (a layer
// of it, and one of attention without an MLP), nemotron_h (one of Mamba 2 without an MLP, one of attention
// with glm4_moe's experts, without gates and behind a latent), olmo3 (norms over all heads of q and of k,
// norms behind attention and MLP alone, a window as in gemma3), granite (what a layer adds to a row is
// scaled, and so are embeddings; logits are divided), granitemoe (the same with experts), glm4 (heads of
// which a half turns in pairs side by side, biases, norms before and behind attention and MLP), lfm2 (one
// layer of a short convolution with biases, and one of attention), lfm2_moe (one of attention, and one of a
// short convolution and of experts by sigmoids whose sum has an eps), gemma4 (heads of two shapes, values
// from keys and their norm, a scale of each layer), gemma4_moe (the same with experts beside the MLP),
// gemma4_shared (keys of two layers for the two behind them, whose MLPs are narrower, and numbers of tokens
// for every layer), afmoe (gates with a matrix of their own, norms of q and k, before and behind attention
// and MLP; a layer with a window, and one that does not turn, with glm4_moe's experts), apertus (norms of q
// and k, MLPs without a gate whose activation has trained scalars).
inline ModelConfig small(const std::string& variant, HeadKind head = HeadKind::kLm) {
  ModelConfig c;
  c.family = variant;
  c.head = head;
  c.vocab_size = kVocabulary;
  c.hidden_size = 24;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 8;
  c.intermediate_size = 40;
  c.max_positions = 64;
  c.attention_scale = 0.35;
  c.sliding_windows = {0, 0};
  for (int64_t i = 0; i < 4; ++i) c.rope_inv_freq.push_back(std::pow(100.0, -static_cast<double>(i) / 4));
  c.qk_norm = variant == "qwen3" || variant == "qwen3_moe" || variant == "gemma3";
  c.qkv_bias = variant == "qwen2";
  c.value_bias = head == HeadKind::kValue;
  if (variant == "qwen3_moe") {
    c.moe = MoeConfig{4, 2, 16, true};
    c.moe_layers = {false, true};
  } else if (variant == "deepseek_v3" || variant == "deepseek_v2") {
    give_latent(c, {12, 9, 6, 4, 5, true});
    c.qkv_bias = c.output_bias = true;
    if (variant == "deepseek_v3")
      give_sigmoid_experts(c);
    else
      give_softmax_groups(c);
  } else if (variant == "latent") {
    give_latent(c, {0, 7, 2, 4, 8, false});
  } else if (variant == "glm4_moe") {
    give_sigmoid_experts(c);
    c.rope_inv_freq = {1, 0.1};
  } else if (variant == "gpt_oss") {
    c.attention_sinks = c.qkv_bias = c.output_bias = true;
    c.activation = Activation::kClampedSwiglu;
    c.sliding_windows = {6, 0};
    c.moe = MoeConfig{4, 2, 16, true};
    c.moe->biases = true;
    c.moe_layers = {true, true};
  } else if (variant == "qwen3_5") {
    give_delta(c, {true, false}, DeltaMatrices::kJoined);
  } else if (variant == "qwen3_next") {
    give_delta(c, {false, true}, DeltaMatrices::kByKeyHead);
    c.moe = MoeConfig{4, 2, 16, true, 12, true};
    c.moe_layers = {false, true};
  } else if (variant == "mamba2") {
    give_mamba2(c, {true, false}, {false, true});
  } else if (variant == "nemotron_h") {
    give_sigmoid_experts(c);
    c.moe->latent_size = 10;
    give_mamba2(c, {true, false}, {true, false});
  } else if (variant == "lfm2") {
    give_short_conv(c, {true, false}, true);
  } else if (variant == "lfm2_moe") {
    give_short_conv(c, {false, true}, false);
    c.moe = MoeConfig{4, 2, 16, true, 0, false, RouterScore::kSigmoid, true};
    c.moe->normalizer_eps = 0.3;
    c.moe_layers = {false, true};
  } else if (variant == "gpt2") {
    c.norm = NormKind::kLayer;
    c.positions = PositionKind::kLearned;
    c.rope_inv_freq.clear();
    c.gated_mlp = false;
    c.activation = Activation::kGeluTanh;
    c.qkv_bias = c.output_bias = c.mlp_bias = true;
    c.tied_embeddings = true;
  } else if (variant == "gemma2") {
    c.norm_unit_offset = c.post_norms = c.tied_embeddings = true;
    c.activation = Activation::kGeluTanh;
    c.attention_softcap = 5;
    c.final_softcap = 6;
    c.sliding_windows = {4, 0};
    c.embedding_scale = std::sqrt(24.0);
  } else if (variant == "gemma3") {
    c.norm_unit_offset = c.post_norms = c.tied_embeddings = true;
    c.activation = Activation::kGeluTanh;
    c.embedding_scale = std::sqrt(24.0);
    for (const double f : c.rope_inv_freq) c.second_rope_inv_freq.push_back(0.7 * f);
    give_windows(c, {4, 0});
  } else if (variant == "gemma4") {
    give_gemma4(c, {4, 0});
  } else if (variant == "gemma4_moe") {
    give_gemma4(c, {4, 0});
    c.moe = MoeConfig{4, 2, 16, true};
    c.moe->beside_mlp = true;
    c.moe_layers = {true, true};
  } else if (variant == "gemma4_shared") {
    give_gemma4(c, {4, 0, 4, 0});
    c.values_from_keys = false;
    c.shared_kv_layers = 2;
    c.shared_mlp_size = 28;
    c.per_layer_size = 6;
  } else if (variant == "olmo3") {
    c.input_norms = false;
    c.post_norms = c.whole_qk_norm = true;
    for (const double f : c.rope_inv_freq) c.second_rope_inv_freq.push_back(0.7 * f);
    give_windows(c, {4, 0});
  } else if (variant == "olmo_hybrid") {
    c.linear = LinearAttentionConfig{LinearRule::kGatedDelta, 2, 4, 6, 5, DeltaMatrices::kApart};
    c.linear->beta_scale = 2;
    c.linear->norm_eps = 1e-4;
    c.linear_layers = {true, false};
    c.input_norms = false;
    c.post_norms = c.whole_qk_norm = true;
    c.positions = PositionKind::kNone;
    c.rope_inv_freq.clear();
  } else if (variant == "granite" || variant == "granitemoe") {
    c.embedding_scale = 3;
    c.residual_scale = 0.6;
    c.logits_scaling = 0.7;
    if (variant == "granitemoe") {
      c.moe = MoeConfig{4, 2, 16, true};
      c.moe_layers = {false, true};
    } else {
      c.qkv_bias = c.output_bias = c.mlp_bias = c.tied_embeddings = true;
    }
  } else if (variant == "glm4") {
    c.post_norms = c.qkv_bias = c.rope_pairs = true;
    c.rope_inv_freq = {1, 0.1};
  } else if (variant == "afmoe") {
    c.attention_gate = c.gates_apart = c.qk_norm = c.post_norms = true;
    c.embedding_scale = std::sqrt(24.0);
    c.sliding_windows = {6, 0};
    c.second_rope_layers = {false, true};
    give_sigmoid_experts(c);
  } else if (variant == "apertus") {
    c.qk_norm = true;
    c.gated_mlp = false;
    c.activation = Activation::kXielu;
  } else if (variant == "smollm3") {
    c.second_rope_layers = {false, true};
  }
  return c;
}

}  // namespace troupe::test
