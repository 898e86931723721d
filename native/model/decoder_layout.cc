// Names, shapes, groups and initial values of every parameter.
#include "model/decoder_layout.h"

#include <cmath>
#include <map>
#include <set>

#include "base/error.h"

namespace troupe {

namespace {

class DecoderLayout {
 public:
  DecoderLayout(const ModelConfig& config, bool frozen) : c_(config), frozen_(frozen) {}

  ParameterLayout build() {
    all_.family = c_.family;
    group({.name = "embed", .trainable = !frozen_});
    add_matrix("embed.weight", c_.vocab_size, c_.hidden_size);
    if (c_.positions == PositionKind::kLearned) add_matrix("pos_embed.weight", c_.max_positions, c_.hidden_size);
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) add_layer(layer);
    group({.name = "head", .trainable = !frozen_});
    add_norm("norm");
    if (c_.head == HeadKind::kValue) {
      if (frozen_) group({.name = "value_head", .trainable = true});
      add_matrix("head.weight", 1, c_.hidden_size);
      if (c_.value_bias) add("head.bias", {1}, InitialValue::kZero);
    } else if (!c_.tied_embeddings) {
      add_matrix("head.weight", c_.vocab_size, c_.hidden_size);
    }
    return std::move(all_);
  }

 private:
  void group(const GroupSpec& spec) { all_.groups.push_back(spec); }
  void add(std::string name, std::vector<int64_t> shape, InitialValue initial) {
    all_.parameters.push_back({{std::move(name), std::move(shape)}, all_.groups.size() - 1, initial});
  }
  void add_matrix(std::string name, int64_t out, int64_t in) {
    add(std::move(name), {out, in}, InitialValue::kNormal);
  }
  void add_linear(const std::string& name, int64_t out, int64_t in, bool bias) {
    add_matrix(name + ".weight", out, in);
    if (bias) add(name + ".bias", {out}, InitialValue::kZero);
  }
  // The identity: gemma scales by 1 + weight.
  void add_scale(std::string name, int64_t size) {
    add(std::move(name), {size}, c_.norm_unit_offset ? InitialValue::kZero : InitialValue::kOne);
  }
  void add_norm(const std::string& name) {
    add_scale(name + ".weight", c_.hidden_size);
    if (c_.norm == NormKind::kLayer) add(name + ".bias", {c_.hidden_size}, InitialValue::kZero);
  }
  void add_layer(int64_t layer) {
    const std::string name = "layers." + std::to_string(layer);
    const std::string prefix = name + ".";
    const int64_t in_factor = c_.gated_mlp ? 2 : 1;
    group({.name = name, .layer = layer, .trainable = !frozen_});
    add_norm(prefix + "attn_norm");
    add_linear(prefix + "attn.qkv", c_.qkv_size(), c_.hidden_size, c_.qkv_bias);
    if (c_.qk_norm) {
      add_scale(prefix + "attn.q_norm.weight", c_.head_dim);
      add_scale(prefix + "attn.k_norm.weight", c_.head_dim);
    }
    add_linear(prefix + "attn.out", c_.hidden_size, c_.q_size(), c_.output_bias);
    if (c_.post_norms) add_norm(prefix + "attn_post_norm");
    add_norm(prefix + "mlp_norm");
    if (c_.is_moe_layer(layer)) {
      add_matrix(prefix + "moe.router.weight", c_.moe->num_experts, c_.hidden_size);
      for (int64_t expert = 0; expert < c_.moe->num_experts; ++expert) {
        const std::string experts = prefix + "moe.experts." + std::to_string(expert);
        add_matrix(experts + ".in.weight", in_factor * c_.moe->intermediate_size, c_.hidden_size);
        add_matrix(experts + ".out.weight", c_.hidden_size, c_.moe->intermediate_size);
      }
    } else {
      add_linear(prefix + "mlp.in", in_factor * c_.intermediate_size, c_.hidden_size, c_.mlp_bias);
      add_linear(prefix + "mlp.out", c_.hidden_size, c_.intermediate_size, c_.mlp_bias);
    }
    if (c_.post_norms) add_norm(prefix + "mlp_post_norm");
  }

  const ModelConfig& c_;
  const bool frozen_;  // but for the value head
  ParameterLayout all_;
};

// The weights that adapters may be on, by name.
std::map<std::string, const ParameterSpec*> adaptable(const std::vector<ParameterSpec>& parameters) {
  std::map<std::string, const ParameterSpec*> weights;
  for (const ParameterSpec& spec : parameters) {
    const std::string& name = spec.info.name;
    const bool linear = name.find(".attn.") != std::string::npos || name.find(".mlp.") != std::string::npos;
    if (linear && spec.info.shape.size() == 2) weights[name] = &spec;
  }
  return weights;
}

void add_adapters(ParameterLayout& layout, const LoraOptions& lora) {
  require(lora.rank > 0, ErrorCode::kInvalidArgument, "[lora] expected a rank > 0, got ", lora.rank);
  require(std::isfinite(lora.scale), ErrorCode::kInvalidArgument, "[lora] expected a finite scale, got ",
          lora.scale);
  require(!lora.sites.empty(), ErrorCode::kInvalidArgument, "[lora] expected at least one site");
  const std::vector<ParameterSpec> base = layout.parameters;
  const auto weights = adaptable(base);
  std::set<std::string> names;
  std::map<size_t, size_t> groups;  // of adapters, by the group of the weights that they are on
  for (const AdapterSite& site : lora.sites) {
    const auto found = weights.find(site.param);
    require(found != weights.end(), ErrorCode::kInvalidArgument, "[lora] site ", site.name, ": '", site.param,
            "' is not the weight of a linear layer of attention or a dense MLP");
    const ParameterSpec& weight = *found->second;
    const std::vector<int64_t>& shape = weight.info.shape;
    require(site.row >= 0 && site.rows > 0 && site.row + site.rows <= shape[0], ErrorCode::kInvalidArgument,
            "[lora] site ", site.name, ": rows ", site.row, " to ", site.row + site.rows, " are outside ",
            site.param, ", which has ", shape[0]);
    require(site.name.rfind("layers.", 0) == 0 && names.insert(site.name).second, ErrorCode::kInvalidArgument,
            "[lora] expected a name of its own that begins with layers. for each site, got '", site.name,
            "'");
    const auto [group, fresh] = groups.emplace(weight.group, layout.groups.size());
    if (fresh) {
      const GroupSpec adapted = layout.groups[weight.group];
      layout.groups.push_back({adapted.name + ".lora", adapted.layer, true, weight.group});
    }
    const AdapterParameters adapter{site.name + ".lora_a", site.name + ".lora_b", site.row, lora.scale};
    layout.parameters.push_back({{adapter.a, {lora.rank, shape[1]}}, group->second, InitialValue::kUniform});
    layout.parameters.push_back({{adapter.b, {site.rows, lora.rank}}, group->second, InitialValue::kZero});
    layout.adapters[site.param].push_back(adapter);
  }
}

}  // namespace

ParameterLayout decoder_layout(const ModelConfig& config, const std::optional<LoraOptions>& lora) {
  ParameterLayout layout = DecoderLayout(config, lora.has_value()).build();
  if (lora) add_adapters(layout, *lora);
  return layout;
}

}  // namespace troupe
