#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "small_decoder.h"

// A model of an odd shape, a layout of up to six ranks that can have it, and an odd batch, drawn from a
// number.
namespace troupe::test {

struct RandomLayout {
  EngineOptions options;
  TokenBatch tokens;
  at::Tensor mask, old, advantages;  // [sum R]
  MiniBatches mini;                  // one
  PolicyLossOptions policy;
  std::string name;

  int64_t ranks() const { return options.parallel.tp * options.parallel.cp * options.pipeline.stages; }
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool coin() { return between(0, 1) == 1; }
  // One of the numbers from 1 to `high` that fit.
  template <typename Fits>
  int64_t fitting(int64_t high, Fits&& fits) {
    std::vector<int64_t> all;
    for (int64_t n = 1; n <= high; ++n) {
      if (fits(n)) all.push_back(n);
    }
    return all[static_cast<size_t>(between(0, static_cast<int64_t>(all.size()) - 1))];
  }

 private:
  std::mt19937_64 random_;
};

inline ModelConfig random_model(Draw& draw, const std::string& family) {
  const bool latent = family == "deepseek_v3", sigmoid = family == "glm4_moe" || latent;
  const bool sinks = family == "gpt_oss";
  const bool experts = family == "qwen3_moe" || family == "mixtral" || family == "qwen2_moe" ||
                       family == "granitemoe" || sigmoid || sinks;
  const bool own = sigmoid || sinks || family == "granitemoe";
  ModelConfig model = small(experts && !own ? "qwen3_moe" : family);
  model.family = family;
  model.vocab_size = draw.between(5, 97);
  model.hidden_size = draw.between(3, 30);
  model.num_layers = draw.between(1, 6);
  model.num_heads = draw.between(1, 9);
  model.num_kv_heads = draw.fitting(model.num_heads, [&](int64_t n) { return model.num_heads % n == 0; });
  model.head_dim = 2 * draw.between(1, 4);
  model.intermediate_size = draw.between(1, 41);
  const bool windows = family == "qwen3" || family == "gemma3" || family == "olmo3" || sinks;
  std::vector<int64_t> drawn;
  for (int64_t layer = 0; layer < model.num_layers; ++layer)
    drawn.push_back(windows && draw.coin() ? draw.between(2, 30) : 0);
  give_windows(model, drawn);
  model.rope_inv_freq.clear();
  const int64_t turning =
      sigmoid || model.rope_pairs ? 2 * draw.between(1, model.head_dim / 2) : model.head_dim;
  for (int64_t i = 0; i < turning; i += 2)
    model.rope_inv_freq.push_back(
        std::pow(100.0, -static_cast<double>(i) / static_cast<double>(model.head_dim)));
  if (family == "gemma3" || family == "olmo3") {
    model.second_rope_inv_freq.clear();
    for (const double f : model.rope_inv_freq) model.second_rope_inv_freq.push_back(0.7 * f);
  } else if (family == "smollm3") {
    model.second_rope_layers.clear();
    for (int64_t layer = 0; layer < model.num_layers; ++layer)
      model.second_rope_layers.push_back(draw.coin());
  }
  model.qk_norm = family == "qwen3" || family == "qwen3_moe" || family == "gemma3";
  model.qkv_bias = family == "qwen2" || family == "qwen2_moe" || family == "glm4" || sinks;
  if (latent) {
    give_latent(model, {draw.coin() ? draw.between(1, 20) : 0, draw.between(1, 20), draw.between(1, 7),
                        2 * draw.between(1, 4), draw.between(1, 11), draw.coin()});
    model.qkv_bias = model.output_bias = draw.coin();
  }
  if (experts) {
    const int64_t count = draw.between(2, 8);
    model.moe = MoeConfig{count, draw.between(1, count), draw.between(1, 21), family != "qwen2_moe",
                          family == "qwen2_moe" || sigmoid ? draw.between(1, 21) : 0};
    if (sigmoid) {
      model.moe->shared_gate = false;
      model.moe->score = RouterScore::kSigmoid;
      model.moe->correction_bias = model.moe->wide_logits = true;
      model.moe->routed_scale = 1.5;
    }
    model.moe->biases = sinks;
    model.moe_layers.clear();
    for (int64_t layer = 0; layer < model.num_layers; ++layer)
      model.moe_layers.push_back(layer + 1 == model.num_layers || draw.between(0, 3) > 0);
  }
  return model;
}

// family: of small_model.h, mixtral or qwen2_moe. The first forward finds the old log-probs that it is
// given.
inline RandomLayout random_layout(uint64_t seed, const std::string& family) {
  Draw draw(seed * 1000003 + family.size() * 257 + static_cast<uint64_t>(family.front()));
  RandomLayout drawn;
  EngineOptions& options = drawn.options;
  options.model = random_model(draw, family);
  const ModelConfig& model = options.model;
  const int64_t heads = model.num_heads, keys = model.num_kv_heads;
  ParallelDims& dims = options.parallel;
  dims.tp = draw.fitting(6, [&](int64_t n) { return heads % n == 0 && (keys % n == 0 || n % keys == 0); });
  PipelineOptions& pipeline = options.pipeline;
  pipeline.stages = draw.between(1, std::min(model.num_layers, 6 / dims.tp));
  dims.cp = draw.between(1, 6 / dims.tp / pipeline.stages);
  pipeline.chunks = pipeline.stages > 1 ? draw.between(1, model.num_layers / pipeline.stages) : 1;
  options.sequence_parallel = dims.tp > 1 && draw.coin();
  options.gradient_checkpointing = draw.coin();
  options.seed = seed;
  options.num_threads = 1;
  options.max_tokens = draw.between(64, 160);
  // Steps in proportion to the gradient: those of the usual eps have the sign of a gradient that is nothing
  // but rounding, and so make of a difference of 1e-9 one of the learning rate.
  options.optim = OptimizerOptions{};
  options.optim->lr = 0.1;
  options.optim->eps = 1;

  std::vector<int64_t> lengths, prompts;
  int64_t response = 0;
  const int64_t sequences = draw.between(1, 4);
  for (int64_t i = 0; i < sequences; ++i) {
    lengths.push_back(draw.between(2, 63));
    prompts.push_back(draw.between(1, lengths.back() - 1));
    response += lengths.back() - prompts.back();
  }
  drawn.tokens = batch_of(lengths, prompts, static_cast<int64_t>(seed));
  drawn.tokens.tokens = drawn.tokens.tokens.remainder(model.vocab_size);
  drawn.mask = at::ones({response}, at::kByte);
  const at::Tensor step = at::arange(response, at::kFloat);
  drawn.old = step.sin().mul(0.3).sub(std::log(static_cast<double>(model.vocab_size)));
  drawn.advantages = step.mul(1.3).cos();
  drawn.mini = {{0, sequences}, {static_cast<double>(response)}, {static_cast<double>(sequences)}, 1};
  drawn.policy.entropy_coeff = draw.coin() ? 0.01 : 0;
  if (model.moe && draw.coin()) {
    drawn.policy.router_aux_loss_coef = 0.1;
    drawn.policy.router_z_loss_coef = 0.01;
  }
  // What routers of these choose is not traced.
  if (dims.cp == 1 && !model.moe && draw.coin()) {
    options.model.prediction = PredictionConfig{draw.between(1, 2), draw.coin()};
    options.prediction.detach = draw.coin();
  }
  options.activation_offload = options.gradient_checkpointing && draw.coin();
  const bool muon = draw.coin();
  if (muon) {
    options.optim->lr = 0.01;
    options.optim->muon = MuonOptions{.extra_scale = 0.05, .bfloat16 = false};
  }
  const auto axis = [](const char* name, int64_t size) { return name + std::to_string(size); };
  drawn.name = family + " " + axis("drawn from ", static_cast<int64_t>(seed)) +
               axis(": layers ", model.num_layers) + axis(", tp ", dims.tp) + axis(" cp ", dims.cp) +
               axis(" pp ", pipeline.stages) + axis(" vpp ", pipeline.chunks) +
               axis(", further ", model.prediction_layers()) + (muon ? ", Muon" : "");
  return drawn;
}

}  // namespace troupe::test
