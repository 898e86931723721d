// The shape of a decoder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace troupe {

enum class HeadKind { kLm, kValue };
enum class PositionKind { kRope, kLearned, kNone };

enum class RouterScore { kSoftmax, kSigmoid };

struct MoeConfig {
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t intermediate_size = 0;
  bool normalize_top_k = false;          // divide the k routing weights by their sum
  int64_t shared_intermediate_size = 0;  // of the expert that every token goes to; 0: none
  bool shared_gate = true;               // whose output is weighted by a gate of its own
  RouterScore score = RouterScore::kSoftmax;
  bool correction_bias = false;  // added to the scores for the choice alone: a buffer, not trained
  // The experts make up `groups` equal parts in order; a token chooses among those of `top_groups` of them.
  int64_t groups = 1, top_groups = 1;
  double routed_scale = 1;   // of the routing weights
  bool biases = false;       // of the router and of both matrices of every expert
  int64_t group_best = 2;    // a group ranks by the sum of its so many best scores
  bool wide_logits = false;  // the router's product is in float32 whatever the compute dtype
  // Of what experts see in place of a row (model/expert_latent.h); 0: the row itself.
  int64_t latent_size = 0;
  double normalizer_eps = 0;  // added to the sum that the k routing weights are divided by
  // gemma 4: a layer's MLP and its experts both take the row behind attention, each through norms of its own
  // (model/block_beside.cc); the router takes it normed and scaled, and has a factor for each expert's
  // weight.
  bool beside_mlp = false;
};

// Of attention: key heads, and the numbers of each head.
struct HeadShape {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): model/latent_projection.h.
struct LatentConfig {
  int64_t query_rank = 0;  // of the queries' latent; 0: a whole matrix makes them
  int64_t key_rank = 0;    // of the latent that keys and values are made from
  int64_t still_dim = 0;   // of a query and a key: what does not turn
  int64_t rotary_dim = 0;  // and what does, in the key the same for all heads
  int64_t value_dim = 0;
  bool interleaved = true;  // of the part that turns, numbers 2i and 2i + 1 turn together; else i and R/2 + i
  double norm_eps = 1e-6;   // of the latents' norms
  bool absorbed = false;    // attention is over the latents: see over_latents()

  int64_t row_dim() const { return rotary_dim + key_rank; }  // of what a token is to attention over latents
};

enum class LinearRule { kGatedDelta, kMamba2, kShortConv };

// Of which matrices a checkpoint has the input projection of Gated DeltaNet: one of q, k and v, then z, b and
// a; one of q, k, v and z by key head (with its value heads), and one of b and a in the same way; or q, k, v,
// z, b and a apart.
enum class DeltaMatrices { kJoined, kByKeyHead, kApart };

// What stands in the place of attention at a cost linear in rows: Gated DeltaNet (model/gated_delta_net.h),
// Mamba 2 (model/mamba2.h), or a short convolution (model/short_convolution.h), whose heads are its channels:
// as many keys as values, of no numbers, and values of one. Its layers have input norms alone, whatever those
// of attention have.
struct LinearAttentionConfig {
  LinearRule rule = LinearRule::kGatedDelta;
  int64_t key_heads = 0;    // of queries and keys; of Mamba 2 its groups
  int64_t value_heads = 0;  // of values, and of states: a multiple
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  DeltaMatrices matrices = DeltaMatrices::kJoined;
  bool conv_bias = false;  // of the convolution; of a short one of both projections, too
  double least_step = 0;   // of Mamba 2
  double beta_scale = 1;   // of Gated DeltaNet: with 2 a row may turn what it erases around
  double norm_eps = 1e-6;
  int64_t conv_width = 4;  // rows that go into one of the convolution: at most so many

  bool has_skip() const { return rule == LinearRule::kMamba2; }
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }  // of the convolution: q, k, v, or v, k, q
  // Of the input projection: the channels, the gate, and behind both the numbers of every value head.
  int64_t first_channel() const { return rule == LinearRule::kMamba2 ? values() : 0; }
  int64_t first_gate() const { return rule == LinearRule::kMamba2 ? 0 : channels(); }
  int64_t columns() const {
    const std::vector<int64_t> blocks = column_blocks();
    return std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  }
  // What its columns, and the channels of the convolution among them, are one beside the other: each of
  // these falls into even parts by head.
  std::vector<int64_t> column_blocks() const {
    if (rule == LinearRule::kMamba2) return {values(), values(), keys(), keys(), value_heads};
    if (rule == LinearRule::kShortConv) return {values(), values(), values()};
    return {keys(), keys(), values(), values(), value_heads, value_heads};
  }
  std::vector<int64_t> channel_blocks() const {
    if (rule == LinearRule::kMamba2) return {values(), keys(), keys()};
    if (rule == LinearRule::kShortConv) return {values()};
    return {keys(), keys(), values()};
  }
  // That of one of `ranks` ranks, which have as many heads each.
  LinearAttentionConfig own_heads(int64_t ranks) const {
    LinearAttentionConfig own = *this;
    own.key_heads /= ranks;
    own.value_heads /= ranks;
    return own;
  }
};
// Of a layer's parameters.
inline const char* linear_attention_name(const LinearAttentionConfig& config) {
  switch (config.rule) {
    case LinearRule::kMamba2: return "mamba";
    case LinearRule::kShortConv: return "short_conv";
    case LinearRule::kGatedDelta: break;
  }
  return "delta";
}

// Layers that predict further tokens (multi-token prediction; DeepSeek-V3, arXiv:2412.19437, section 2.2):
// model/prediction_layer.h. Layer k of them is numbered num_layers + k, and has attention, and experts where
// the model has some.
struct PredictionConfig {
  int64_t layers = 1;
  bool hidden_first =
      false;  // columns of the projection: those of the row, then of the token; else the token's first
  bool trained = true;  // otherwise they stay as they are: a rollout drafts with them
};

// The tower that reads images (Qwen3-VL, arXiv:2511.21631, section 2; Qwen3.5; Qwen2.5-VL, arXiv:2502.13923,
// section 2.1; GLM-4.1V, arXiv:2507.01006, section 2): model/vision_tower.h.
struct VisionConfig {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t intermediate_size = 0;
  bool gated_mlp = false;
  Activation activation = Activation::kGeluTanh;
  NormKind norm = NormKind::kLayer;
  double norm_eps = 1e-6;
  int64_t patch_size = 0;           // pixels on a side
  int64_t temporal_patch_size = 0;  // frames of a patch, of which an image is all
  bool patch_bias = true;           // of the product that patches go through
  bool patch_norm = false;          // behind that product
  bool qkv_bias = true;             // of the layers
  bool layer_bias = true;           // of the other products of the layers
  int64_t merge_size = 0;           // patches on a side that one token of the decoder stands for
  int64_t position_side = 0;        // of the square of learned positions; 0: there are none
  bool cubic_positions = false;     // these are interpolated as model/image_patches.h says
  int64_t gated_merger_size =
      0;                    // inner width of a merger with a gate (model/gated_merger.h); 0: it has none
  int64_t window_side = 0;  // tokens on a side of the squares that attention sees; 0: all of an image
  std::vector<int64_t> whole_layers;  // with windows: the layers that see all of an image all the same
  std::vector<double> rope_inv_freq;  // [head_dim / 4], by which rows turn, and columns
  // After these of its layers a merger makes what is added behind the decoder's layers 0, 1, ...
  std::vector<int64_t> deepstack_layers;
  std::vector<double> pixel_mean, pixel_std;  // [3] of pixels between 0 and 1, by channel
  int64_t image_token = 0;                    // the token that stands for merge_size^2 patches of an image
  // Of each frequency of the decoder's heads, which of a token's positions it turns by: 0 time, 1 row, 2
  // column.
  std::vector<int64_t> rope_axes;  // as many as rope_inv_freq of the decoder has
  bool trained = true;             // false: as it was loaded

  int64_t head_dim() const { return hidden_size / num_heads; }
  // Whether attention of this layer sees windows.
  bool has_windows(int64_t layer) const {
    return window_side > 0 &&
           std::find(whole_layers.begin(), whole_layers.end(), layer) == whole_layers.end();
  }
  int64_t patch_values() const { return 3 * temporal_patch_size * patch_size * patch_size; }
};

// A decoder, fully resolved: every default of the Hugging Face config.json has been applied by
// ts/model, which also computes the rotary frequencies (in double), so that JSON and the quirks of
// config files stay on the TypeScript side and this struct has no optional meaning left.
struct ModelConfig {
  std::string family;  // "llama", "qwen2", ...: for messages only
  HeadKind head = HeadKind::kLm;

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t max_positions = 0;  // longest sequence the position encoding allows

  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-6;
  bool norm_unit_offset = false;  // gemma: scale by (1 + weight)
  bool input_norms = true;        // before attention and before the MLP; olmo 2 has those after them alone
  bool post_norms = false;        // gemma 2: a second norm after attention and after the MLP
  bool qk_norm = false;           // qwen 3: RMSNorm over head_dim on q and k before RoPE
  bool whole_qk_norm = false;     // olmo 2: over all heads of q, and of k (model/whole_qk_norm.h)
  bool value_norm = false;        // gemma 4: RMSNorm over head_dim on v, without a weight
  bool layer_scale = false;       // gemma 4: a factor of each layer's output: a buffer, not trained

  double attention_scale = 0;            // multiplies q.k
  double attention_softcap = 0;          // 0 = off
  double final_softcap = 0;              // on the logits, before the temperature; 0 = off
  double logits_scaling = 1;             // granite: divides the logits, behind the soft cap
  double residual_scale = 1;             // granite: multiplies what attention and the MLP add to a row
  std::vector<int64_t> sliding_windows;  // [num_layers]; key visible iff q - k < window; 0 = full

  bool attention_gate = false;   // heads are multiplied by the sigmoid of a gate each
  bool gates_apart = false;      // afmoe: gates have a matrix of their own; else each comes with its query
  bool attention_sinks = false;  // a logit per query head (kernels/attention_sinks.h)

  bool qkv_bias = false;
  bool output_bias = false;  // attention output projection
  bool mlp_bias = false;
  bool gated_mlp = true;  // down(act(gate(x)) * up(x)), else down(act(up(x))); of experts, too
  Activation activation = Activation::kSilu;

  PositionKind positions = PositionKind::kRope;
  std::vector<double> rope_inv_freq;  // [rotary_dim / 2]: the first so many of a head turn
  bool rope_pairs = false;  // glm4: numbers 2i and 2i + 1 of a head turn together; else i and R/2 + i
  double rope_attention_factor = 1;  // yarn: multiplies cos and sin
  // Layers whose heads turn in another way: gemma 3's with a sliding window, smollm 3's that have no
  // positions (no frequencies).
  std::vector<bool> second_rope_layers;  // [num_layers]; empty = none
  std::vector<double> second_rope_inv_freq;
  double second_rope_attention_factor = 1;
  std::optional<HeadShape> second_heads;  // gemma 4: of these layers; none: as of the others
  // gemma 4: in layers but these a value is what its key is before norm and rotary.
  bool values_from_keys = false;
  // gemma 4: the last so many layers take keys and values from the last layer of their kind (these layers, or
  // the others) before all of them, and have MLPs of shared_mlp_size; 0: of intermediate_size.
  int64_t shared_kv_layers = 0;
  int64_t shared_mlp_size = 0;
  // gemma 4: numbers that every layer gets of a row's token (model/per_layer_embeddings.h); 0: none.
  int64_t per_layer_size = 0;

  double embedding_scale = 1;  // gemma: sqrt(hidden_size), rounded to the compute dtype
  bool tied_embeddings = false;
  bool value_bias = false;  // value head has a bias

  // num_kv_heads is then num_heads, and head_dim of queries, keys and, with zeros behind value_dim, values.
  std::optional<LatentConfig> latent;

  std::optional<MoeConfig> moe;
  std::vector<bool> moe_layers;  // [num_layers]; empty = none
  std::vector<bool>
      bare_layers;  // [num_layers]; empty = none: those that end behind their mixer, without an MLP

  std::optional<LinearAttentionConfig> linear;
  std::vector<bool> linear_layers;  // [num_layers]; empty = none
  std::optional<VisionConfig> vision;
  std::optional<PredictionConfig> prediction;  // those that are held; none: none, whatever the files have
  // Of the layers of a tower (vision_layers): where the names of their parameters begin, and whether a row
  // sees the rows behind it.
  std::string prefix;
  bool causal = true;

  int64_t prediction_layers() const { return prediction ? prediction->layers : 0; }
  bool trains_predictions() const { return prediction && prediction->trained; }
  // Behind those of the decoder: one that predicts a further token.
  bool is_prediction_layer(int64_t layer) const { return layer >= num_layers; }
  bool has_input_norms(int64_t layer) const { return input_norms || is_linear_layer(layer); }
  bool has_post_norms(int64_t layer) const { return post_norms && !is_linear_layer(layer); }
  int64_t sliding_window(int64_t layer) const {
    return is_prediction_layer(layer) ? 0 : sliding_windows[static_cast<size_t>(layer)];
  }
  bool has_second_rope(int64_t layer) const {
    return !second_rope_layers.empty() && !is_prediction_layer(layer) &&
           second_rope_layers[static_cast<size_t>(layer)];
  }
  int64_t rotary_dim(int64_t layer) const {
    return 2 * static_cast<int64_t>((has_second_rope(layer) ? second_rope_inv_freq : rope_inv_freq).size());
  }
  bool has_second_heads(int64_t layer) const { return second_heads && has_second_rope(layer); }
  HeadShape heads(int64_t layer) const {
    return has_second_heads(layer) ? *second_heads : HeadShape{num_kv_heads, head_dim};
  }
  // The model as this layer sees it: heads and MLP are those of the layer.
  ModelConfig at_layer(int64_t layer) const;
  // Whether a layer takes keys and values from another one; and from which, or the layer itself.
  bool shares_keys(int64_t layer) const {
    return !is_prediction_layer(layer) && layer >= num_layers - shared_kv_layers;
  }
  int64_t keys_of(int64_t layer) const {
    if (!shares_keys(layer)) return layer;
    int64_t source = num_layers - shared_kv_layers - 1;
    while (source > 0 && has_second_rope(source) != has_second_rope(layer)) --source;
    return source;
  }
  bool gives_keys(int64_t layer) const {
    for (int64_t other = num_layers - shared_kv_layers; other < num_layers; ++other)
      if (other != layer && keys_of(other) == layer) return true;
    return false;
  }
  // Of the heads of layers that are not second.
  int64_t q_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  // Whether a key holds the value, too: attention over latents.
  bool keys_hold_values() const { return latent && latent->absorbed; }
  // What a layer computes of a row before it looks at others: queries, keys, values and gates of attention,
  // or what linear attention takes. And what it gives to its output projection.
  int64_t mixer_inputs(int64_t layer) const {
    if (is_linear_layer(layer)) return linear->columns();
    const auto [kv_heads, dim] = heads(layer);
    return ((attention_gate ? 2 : 1) * num_heads + (keys_hold_values() ? 1 : 2) * kv_heads) * dim;
  }
  int64_t mixer_outputs(int64_t layer) const {
    return is_linear_layer(layer) ? linear->values() : num_heads * heads(layer).head_dim;
  }
  int64_t mlp_size(int64_t layer) const {
    return shares_keys(layer) && shared_mlp_size > 0 ? shared_mlp_size : intermediate_size;
  }
  // Of what attention gives, without the zeros.
  int64_t value_dim() const { return latent ? latent->value_dim : head_dim; }
  // Layers with experts before `layer`; of all: num_layers.
  int64_t moe_layers_before(int64_t layer) const {
    int64_t count = 0;
    for (int64_t l = 0; l < layer; ++l) count += is_moe_layer(l) ? 1 : 0;
    return count;
  }
  bool is_linear_layer(int64_t layer) const {
    return linear.has_value() && !linear_layers.empty() && !is_prediction_layer(layer) &&
           linear_layers[static_cast<size_t>(layer)];
  }
  int64_t linear_layers_of_all() const {
    int64_t count = 0;
    for (int64_t layer = 0; layer < num_layers; ++layer) count += is_linear_layer(layer) ? 1 : 0;
    return count;
  }
  bool has_mlp(int64_t layer) const {
    return bare_layers.empty() || is_prediction_layer(layer) || !bare_layers[static_cast<size_t>(layer)];
  }
  bool is_moe_layer(int64_t layer) const {
    return moe.has_value() && !moe_layers.empty() &&
           (is_prediction_layer(layer) || moe_layers[static_cast<size_t>(layer)]);
  }
};

// Throws kInvalidModel naming the field that makes no sense.
void validate(const ModelConfig& config);

// A model with latent attention as a rollout sees it that keeps latents (model/latent_heads.h): all queries
// have one key head in common, of row_dim() numbers, in which their values are. Scales stay those of the
// heads.
ModelConfig over_latents(ModelConfig config);

// The layers of a tower as those of a decoder without causal order.
ModelConfig vision_layers(const VisionConfig& vision);

}  // namespace troupe
