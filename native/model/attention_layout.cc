// Names, shapes and cuts of what a layer looks at other rows with.
#include "model/attention_layout.h"

#include <numeric>
#include <utility>
#include <vector>

namespace troupe {

CutBlock AttentionLayout::key_heads(const ModelConfig& c) const {
  const int64_t copies = part_.key_copies(c), rank = part_.tp_rank;
  return {c.kv_size(), c.kv_size() * copies / part_.tp, rank / copies, copies, rank % copies, copies > 1};
}

void AttentionLayout::add_latent_projection(const std::string& prefix) {
  const LatentConfig& latent = *c_.latent;
  const int64_t queries = c_.num_heads * (latent.still_dim + latent.rotary_dim);
  const int64_t expanded = c_.num_heads * (latent.still_dim + latent.value_dim);
  if (latent.query_rank > 0) {
    add_linear(prefix + "q_a", latent.query_rank, c_.hidden_size, c_.qkv_bias, everywhere(true));
    add_scale(prefix + "q_norm.weight", latent.query_rank, true);
  }
  add_weight(prefix + "q", queries, latent.query_rank > 0 ? latent.query_rank : c_.hidden_size,
             rows({even(queries)}));
  add_linear(prefix + "kv_a", latent.key_rank + latent.rotary_dim, c_.hidden_size, c_.qkv_bias,
             everywhere(true));
  add_scale(prefix + "kv_norm.weight", latent.key_rank, true);
  add_weight(prefix + "kv_b", expanded, latent.key_rank, rows({even(expanded)}));
}

void AttentionLayout::add_attention(const std::string& prefix, int64_t layer) {
  const ModelConfig c = c_.at_layer(layer);
  const bool keys = !c.shares_keys(layer);
  if (c.latent) {
    add_latent_projection(prefix);
  } else {
    const int64_t queries = (c.attention_gate && !c.gates_apart ? 2 : 1) * c.q_size();
    std::vector<CutBlock> blocks{even(queries)};
    std::vector<int64_t> matrices{queries};
    for (int64_t part = 0; keys && part < (c.values_from_keys ? 1 : 2); ++part) {
      blocks.push_back(key_heads(c));
      matrices.push_back(c.kv_size());
    }
    if (c.gates_apart) {
      blocks.push_back(even(c.q_size()));
      matrices.push_back(c.q_size());
    }
    const int64_t all = std::accumulate(matrices.begin(), matrices.end(), int64_t{0});
    add_linear(prefix + "qkv", all, c.hidden_size, c.qkv_bias, rows(std::move(blocks)), std::move(matrices));
  }
  if (c.qk_norm) {  // of a rank's own heads
    add_scale(prefix + "q_norm.weight", c.head_dim, true);
    if (keys) add_scale(prefix + "k_norm.weight", c.head_dim, true);
  }
  if (c.whole_qk_norm) {
    add(prefix + "q_norm.weight", {c.q_size()}, identity(), rows({even(c.q_size())}));
    add(prefix + "k_norm.weight", {c.kv_size()}, identity(), rows({key_heads(c)}));
  }
  if (c.attention_sinks)
    add(prefix + "sinks", {c.num_heads}, InitialValue::kNormal, rows({even(c.num_heads)}));
  const int64_t values = c.num_heads * c.value_dim();
  add_linear(prefix + "out", c.hidden_size, values, c.output_bias, columns({even(values)}));
}

void AttentionLayout::add_delta_net(const std::string& prefix) {
  const LinearAttentionConfig& delta = *c_.linear;
  const int64_t keys = delta.keys(), values = delta.values(), heads = delta.value_heads;
  std::vector<CutBlock> inputs = even(delta.column_blocks());
  std::vector<int64_t> matrices{delta.channels(), values, heads, heads};
  if (delta.matrices == DeltaMatrices::kApart) matrices = {keys, keys, values, values, heads, heads};
  if (delta.matrices == DeltaMatrices::kByKeyHead) {
    inputs = {even(2 * keys + 2 * values), even(2 * heads)};
    matrices = {2 * keys + 2 * values, 2 * heads};
  }
  add_weight(prefix + "in", delta.columns(), c_.hidden_size, rows(std::move(inputs)), std::move(matrices));
  add(prefix + "conv.weight", {delta.channels(), delta.conv_width}, InitialValue::kUniform,
      rows(even(delta.channel_blocks())));
  add(prefix + "a_log", {heads}, InitialValue::kZero, rows({even(heads)}));
  add(prefix + "dt_bias", {heads}, InitialValue::kOne, rows({even(heads)}));
  add(prefix + "norm.weight", {delta.value_dim}, InitialValue::kOne, everywhere(true));  // of own heads
  add_weight(prefix + "out", c_.hidden_size, values, columns({even(values)}));
}

void AttentionLayout::add_mamba2(const std::string& prefix) {
  const LinearAttentionConfig& mamba = *c_.linear;
  const int64_t values = mamba.values(), heads = mamba.value_heads;
  const std::vector<CutBlock> channels = even(mamba.channel_blocks());
  // No matrix of one purpose: Muon leaves it to AdamW, as in Megatron-LM
  // (megatron/core/ssm/mamba_mixer.py).
  add_matrix(prefix + "in.weight", mamba.columns(), c_.hidden_size, rows(even(mamba.column_blocks())));
  add(prefix + "conv.weight", {mamba.channels(), mamba.conv_width}, InitialValue::kUniform, rows(channels));
  if (mamba.conv_bias) add(prefix + "conv.bias", {mamba.channels()}, InitialValue::kZero, rows(channels));
  add(prefix + "a_log", {heads}, InitialValue::kZero, rows({even(heads)}));
  add(prefix + "dt_bias", {heads}, InitialValue::kOne, rows({even(heads)}));
  add(prefix + "skip", {heads}, InitialValue::kOne, rows({even(heads)}));
  add(prefix + "norm.weight", {values}, InitialValue::kOne, rows({even(values)}));
  add_weight(prefix + "out", c_.hidden_size, values, columns({even(values)}));
}

void AttentionLayout::add_linear_attention(const std::string& prefix) {
  switch (c_.linear->rule) {
    case LinearRule::kGatedDelta: return add_delta_net(prefix);
    case LinearRule::kMamba2: return add_mamba2(prefix);
    case LinearRule::kShortConv: return add_short_convolution(prefix);
  }
}

void AttentionLayout::add_short_convolution(const std::string& prefix) {
  const LinearAttentionConfig& conv = *c_.linear;
  const int64_t values = conv.values();
  const std::vector<CutBlock> inputs = even(conv.column_blocks()), channels = even(conv.channel_blocks());
  add_linear(prefix + "in", conv.columns(), c_.hidden_size, conv.conv_bias, rows(inputs),
             conv.column_blocks());
  add(prefix + "conv.weight", {values, conv.conv_width}, InitialValue::kUniform, rows(channels));
  if (conv.conv_bias) add(prefix + "conv.bias", {values}, InitialValue::kZero, rows(channels));
  add_linear(prefix + "out", c_.hidden_size, values, conv.conv_bias, columns({even(values)}));
}

}  // namespace troupe
