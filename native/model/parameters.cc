#include "model/parameters.h"

#include <set>

#include "base/error.h"

namespace troupe {

namespace {

class Layout {
 public:
  explicit Layout(const ModelConfig& config) : c_(config) {}

  std::vector<ParameterInfo> build() {
    add("embed.weight", {c_.vocab_size, c_.hidden_size});
    if (c_.positions == PositionKind::kLearned) add("pos_embed.weight", {c_.max_positions, c_.hidden_size});
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) add_layer(layer);
    add_norm("norm");
    if (c_.head == HeadKind::kValue) {
      add("head.weight", {1, c_.hidden_size});
      if (c_.value_bias) add("head.bias", {1});
    } else if (!c_.tied_embeddings) {
      add("head.weight", {c_.vocab_size, c_.hidden_size});
    }
    return std::move(all_);
  }

 private:
  void add(std::string name, std::vector<int64_t> shape) {
    all_.push_back({std::move(name), std::move(shape)});
  }
  void add_linear(const std::string& name, int64_t out, int64_t in, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  }
  void add_norm(const std::string& name) {
    add(name + ".weight", {c_.hidden_size});
    if (c_.norm == NormKind::kLayer) add(name + ".bias", {c_.hidden_size});
  }
  void add_layer(int64_t layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const int64_t in_factor = c_.gated_mlp ? 2 : 1;
    add_norm(prefix + "attn_norm");
    add_linear(prefix + "attn.qkv", c_.qkv_size(), c_.hidden_size, c_.qkv_bias);
    if (c_.qk_norm) {
      add(prefix + "attn.q_norm.weight", {c_.head_dim});
      add(prefix + "attn.k_norm.weight", {c_.head_dim});
    }
    add_linear(prefix + "attn.out", c_.hidden_size, c_.q_size(), c_.output_bias);
    if (c_.post_norms) add_norm(prefix + "attn_post_norm");
    add_norm(prefix + "mlp_norm");
    if (c_.is_moe_layer(layer)) {
      add(prefix + "moe.router.weight", {c_.moe->num_experts, c_.hidden_size});
      for (int64_t expert = 0; expert < c_.moe->num_experts; ++expert) {
        const std::string name = prefix + "moe.experts." + std::to_string(expert);
        add(name + ".in.weight", {in_factor * c_.moe->intermediate_size, c_.hidden_size});
        add(name + ".out.weight", {c_.hidden_size, c_.moe->intermediate_size});
      }
    } else {
      add_linear(prefix + "mlp.in", in_factor * c_.intermediate_size, c_.hidden_size, c_.mlp_bias);
      add_linear(prefix + "mlp.out", c_.hidden_size, c_.intermediate_size, c_.mlp_bias);
    }
    if (c_.post_norms) add_norm(prefix + "mlp_post_norm");
  }

  const ModelConfig& c_;
  std::vector<ParameterInfo> all_;
};

void positive(const char* name, int64_t value) {
  require(value > 0, ErrorCode::kInvalidModel, "[model] expected ", name, " > 0, got ", value);
}

}  // namespace

std::vector<ParameterInfo> parameter_layout(const ModelConfig& config) {
  return Layout(config).build();
}

std::string adapter_a(const AdapterSite& site) {
  return site.name + ".lora_a";
}

std::string adapter_b(const AdapterSite& site) {
  return site.name + ".lora_b";
}

std::vector<ParameterInfo> adapter_layout(const std::vector<ParameterInfo>& base, const LoraOptions& lora) {
  require(lora.rank > 0, ErrorCode::kInvalidArgument, "[lora] expected a rank > 0, got ", lora.rank);
  require(std::isfinite(lora.scale), ErrorCode::kInvalidArgument, "[lora] expected a finite scale, got ",
          lora.scale);
  require(!lora.sites.empty(), ErrorCode::kInvalidArgument, "[lora] expected at least one site");
  std::map<std::string, const ParameterInfo*> weights;
  for (const ParameterInfo& info : base) {
    const bool layer =
        info.name.find(".attn.") != std::string::npos || info.name.find(".mlp.") != std::string::npos;
    if (layer && info.shape.size() == 2) weights[info.name] = &info;
  }
  std::vector<ParameterInfo> all;
  std::set<std::string> names;
  for (const AdapterSite& site : lora.sites) {
    const auto found = weights.find(site.param);
    require(found != weights.end(), ErrorCode::kInvalidArgument, "[lora] site ", site.name, ": '", site.param,
            "' is not the weight of a linear layer of attention or a dense MLP");
    const std::vector<int64_t>& shape = found->second->shape;
    require(site.row >= 0 && site.rows > 0 && site.row + site.rows <= shape[0], ErrorCode::kInvalidArgument,
            "[lora] site ", site.name, ": rows ", site.row, " to ", site.row + site.rows, " are outside ",
            site.param, ", which has ", shape[0]);
    require(site.name.rfind("layers.", 0) == 0 && names.insert(site.name).second, ErrorCode::kInvalidArgument,
            "[lora] expected a name of its own that begins with layers. for each site, got '", site.name,
            "'");
    all.push_back({adapter_a(site), {lora.rank, shape[1]}});
    all.push_back({adapter_b(site), {site.rows, lora.rank}});
  }
  return all;
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
    require(c.head_dim % 2 == 0, ErrorCode::kInvalidModel, "[model] RoPE needs an even head_dim, got ",
            c.head_dim);
    require(static_cast<int64_t>(c.rope_inv_freq.size()) == c.head_dim / 2, ErrorCode::kInvalidModel,
            "[model] expected ", c.head_dim / 2, " rotary frequencies, got ", c.rope_inv_freq.size());
  }
  if (c.moe) {
    require(!c.post_norms, ErrorCode::kInvalidModel,
            "[model] experts with post norms (post_norms) are not supported");
    positive("moe.num_experts", c.moe->num_experts);
    positive("moe.intermediate_size", c.moe->intermediate_size);
    require(c.moe->top_k >= 1 && c.moe->top_k <= c.moe->num_experts, ErrorCode::kInvalidModel,
            "[model] expected moe.top_k between 1 and ", c.moe->num_experts, ", got ", c.moe->top_k);
    require(static_cast<int64_t>(c.moe_layers.size()) == c.num_layers, ErrorCode::kInvalidModel,
            "[model] expected one moe_layers entry per layer (", c.num_layers, "), got ",
            c.moe_layers.size());
  }
}

}  // namespace troupe
