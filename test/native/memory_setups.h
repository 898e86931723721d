// What is compared in memory_simulation_test.cc: engines, and the work that they do.
#pragma once

#include <ATen/ATen.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/memory_simulation.h"
#include "engine/rank_engine.h"
#include "small_model.h"

namespace troupe::test {

constexpr int64_t kCapacity = 512;

struct Setup {
  std::string variant;
  HeadKind head = HeadKind::kLm;
  int64_t ranks = 1;
  at::ScalarType dtype = at::kFloat, masters = at::kFloat;
  bool checkpointing = false, offloaded = false;  // offloaded: the inputs of recomputed blocks
  bool lora = false;
  bool muon = false;
  ShardingStrategy sharding = ShardingStrategy::kFullShard;
  bool kl_loss = false;
  // Ranks of these axes; what is left of `ranks` is data parallelism.
  int64_t tp = 1, ep = 1, pp = 1, vpp = 1;
  bool sequence_parallel = false;
  int64_t cp = 1, decoding = 1;  // decoding: ranks that generate together
  bool overlap = false;          // sums of gradients, as on a GPU
  bool frozen = false;           // never trained: no update
  // Of Qwen3-VL, of Qwen2.5-VL, of GLM-4.1V.
  enum class Tower { kNone, kDeepstack, kWindows, kGated } tower = Tower::kNone;
  bool tower_trained = true;
  int64_t top_k = 0;  // of a teacher
  bool router_balance = false, router_z = false;
  RoutingLoad routing = RoutingLoad::kNone;
  ops::Quantization quantization = ops::Quantization::kNone;  // of generation
  bool latents = false;                                       // are what generation keeps
  int64_t predictions = 0;                                    // layers that predict further tokens
  enum class Drafts { kNone, kByTrained, kByHeld } drafts = Drafts::kNone;  // by the first of them
};

inline std::string describe(const Setup& c) {
  const char* strategy = c.sharding == ShardingStrategy::kFullShard     ? "full_shard"
                         : c.sharding == ShardingStrategy::kShardGradOp ? "shard_grad_op"
                                                                        : "no_shard";
  std::string ranks = std::to_string(c.ranks);
  if (c.tp > 1) ranks += " tp " + std::to_string(c.tp) + (c.sequence_parallel ? " sequence parallel" : "");
  if (c.cp > 1) ranks += " cp " + std::to_string(c.cp);
  if (c.pp > 1) ranks += " pp " + std::to_string(c.pp) + (c.vpp > 1 ? " x " + std::to_string(c.vpp) : "");
  if (c.ep > 1) ranks += " ep " + std::to_string(c.ep);
  if (c.overlap) ranks += " overlapping";
  if (c.decoding > 1) ranks += " decoding " + std::to_string(c.decoding);
  if (c.ranks > c.tp * c.pp * c.cp) ranks += std::string(" ") + strategy;
  const std::string tower = c.tower == Setup::Tower::kNone        ? ""
                            : c.tower == Setup::Tower::kDeepstack ? " images"
                            : c.tower == Setup::Tower::kWindows   ? " images in windows"
                                                                  : " images, gated merger";
  return c.variant + tower + (c.tower_trained ? "" : " frozen tower") + (c.latents ? " latents" : "") +
         (c.top_k > 0 ? " top " + std::to_string(c.top_k) : "") + (c.router_balance ? " balance" : "") +
         (c.router_z ? " z-loss" : "") +
         (c.routing == RoutingLoad::kNone       ? ""
          : c.routing == RoutingLoad::kRecorded ? " R2"
                                                : " R3") +
         (c.quantization == ops::Quantization::kNone   ? ""
          : c.quantization == ops::Quantization::kInt8 ? " int8"
                                                       : " fp8") +
         (c.predictions > 0 ? " predictions " + std::to_string(c.predictions) : "") +
         (c.drafts == Setup::Drafts::kNone        ? ""
          : c.drafts == Setup::Drafts::kByTrained ? " drafts"
                                                  : " held, drafts") +
         (c.head == HeadKind::kLm ? "" : " critic") + (c.lora ? " LoRA" : "") + (c.frozen ? " frozen" : "") +
         (c.muon ? " Muon" : "") + " | " + (c.dtype == at::kFloat ? "float32" : "bfloat16") +
         (c.masters == at::kFloat ? "" : " masters") + " | " + ranks + " | " +
         (!c.checkpointing ? "no"
          : c.offloaded    ? "yes, offloaded"
                           : "yes");
}

// A tower whose rows are the larger part of a micro-batch with kImages.
inline void give_tower(ModelConfig& m, Setup::Tower kind, bool trained) {
  VisionConfig v{.num_layers = 3,
                 .hidden_size = 128,
                 .num_heads = 4,
                 .intermediate_size = 320,
                 .patch_size = 4,
                 .temporal_patch_size = 2,
                 .merge_size = 2,
                 .rope_inv_freq = std::vector<double>(8, 0.5),
                 .pixel_mean = {0.5, 0.5, 0.5},
                 .pixel_std = {0.5, 0.5, 0.5},
                 .image_token = m.vocab_size - 1,
                 .rope_axes = std::vector<int64_t>(m.rope_inv_freq.size(), 0),
                 .trained = trained};
  if (kind == Setup::Tower::kDeepstack) {
    v.position_side = 16;
    v.deepstack_layers = {0, 1};
  } else {
    v.gated_mlp = true;
    v.activation = Activation::kSilu;
    v.norm = NormKind::kRms;
  }
  if (kind == Setup::Tower::kWindows) {
    v.patch_bias = false;
    v.window_side = 4;
    v.whole_layers = {1};
  }
  if (kind == Setup::Tower::kGated) {
    v.patch_norm = v.cubic_positions = true;
    v.qkv_bias = v.layer_bias = false;
    v.position_side = 16;
    v.gated_merger_size = 640;
  }
  for (size_t f = 0; f < v.rope_axes.size(); ++f) v.rope_axes[f] = static_cast<int64_t>(f % 3);
  m.vision = v;
}

// Of the 50 tokens of a prompt; one image fills no whole tile of rows.
inline const ImageLoads kImages{{5, 6}, {2, 7}};

// Large enough that activations, head and weights matter, small enough for a fraction of a second.
inline EngineOptions options_of(const Setup& c) {
  EngineOptions options;
  ModelConfig& m = options.model = small(c.variant, c.head);
  m.vocab_size = 4000;
  m.hidden_size = 256;
  give_heads(m, 4, c.variant == "gpt2" ? 4 : 2);
  m.head_dim = 64;
  m.intermediate_size = 768;
  m.max_positions = 512;
  give_windows(m, std::vector<int64_t>(4, 0));
  if (m.positions == PositionKind::kRope) m.rope_inv_freq.assign(32, 0.5);
  if (m.latent) give_latent(m, {m.latent->query_rank > 0 ? 96 : 0, 64, 48, 16, 40});
  if (!m.second_rope_inv_freq.empty()) m.second_rope_inv_freq.assign(32, 0.5);
  if (m.second_heads) {
    m.second_heads = HeadShape{2, 32};
    m.second_rope_inv_freq.assign(16, 0.5);
    give_windows(m, {128, 0, 128, 0});
    if (m.shared_mlp_size > 0) m.shared_mlp_size = 512;
    if (m.per_layer_size > 0) m.per_layer_size = 48;
  }
  if (m.moe) {
    m.moe->num_experts = 8;
    m.moe->top_k = 2;
    m.moe->intermediate_size = 384;
    m.moe_layers.assign(4, true);
    if (m.moe->latent_size > 0) m.moe->latent_size = 96;
  }
  if (m.linear) {
    LinearAttentionConfig& linear = *m.linear;
    if (linear.rule == LinearRule::kShortConv) {
      linear.key_heads = linear.value_heads = 256;
    } else {
      linear.key_heads = 2;
      linear.value_heads = 4;
      linear.key_dim = linear.value_dim = 64;
    }
    m.linear_layers = {true, true, false, true};
    if (!m.bare_layers.empty()) m.bare_layers = {false, true, false, false};
    if (m.moe && !m.bare_layers.empty()) m.moe_layers = {true, false, true, true};
  }
  if (c.tower != Setup::Tower::kNone) give_tower(m, c.tower, c.tower_trained);
  if (c.predictions > 0)
    m.prediction = PredictionConfig{c.predictions, false, c.drafts != Setup::Drafts::kByHeld};
  options.dtype = c.dtype;
  options.master_dtype = c.masters;
  options.max_tokens = kCapacity;
  options.gradient_checkpointing = c.checkpointing;
  options.activation_offload = c.offloaded;
  if (!c.frozen) options.optim = OptimizerOptions{};
  // oneDNN refuses memory of an allocator that counts for products in bfloat16.
  if (c.muon) options.optim->muon = MuonOptions{.bfloat16 = false};
  options.num_threads = 1;  // what other threads allocate is not counted
  options.sharding = c.sharding;
  options.overlap_reduction = c.overlap;
  options.parallel.tp = c.tp;
  options.parallel.ep = c.ep;
  options.parallel.cp = c.cp;
  options.sequence_parallel = c.sequence_parallel;
  options.pipeline.stages = c.pp;
  options.pipeline.chunks = c.vpp;
  if (c.lora) {
    LoraOptions lora;
    lora.rank = 8;
    lora.scale = 2;
    for (int64_t layer = 0; layer < m.num_layers; ++layer) {
      const std::string prefix = "layers." + std::to_string(layer) + ".";
      const int64_t q = m.num_heads * m.head_dim;
      lora.sites.push_back({prefix + "attn.q", prefix + "attn.qkv.weight", 0, q});
      lora.sites.push_back({prefix + "attn.o", prefix + "attn.out.weight", 0, m.hidden_size});
    }
    options.lora = lora;
  }
  return options;
}

inline std::vector<ParameterInfo> parameters_of(EngineOptions options) {
  options.parallel = {};
  options.pipeline = {};
  const ParameterStore store =
      make_store(options, at::kMeta, parallel_dims(options).resolved(1), 0);  // of any size, without memory
  std::vector<ParameterInfo> infos;
  for (const Parameter& parameter : store.all()) infos.push_back(parameter.info);
  return infos;
}

inline std::vector<TensorFile> no_files(const EngineOptions& options) {
  TensorFile file;
  for (const ParameterInfo& info : parameters_of(options)) {
    if (info.name.find("lora") != std::string::npos) continue;
    TensorSlice slice;
    slice.param = slice.label = info.name;
    slice.rows = info.shape[0];
    slice.dtype = "F32";
    slice.offset = file.size;
    file.size += std::accumulate(info.shape.begin(), info.shape.end(), int64_t{4}, std::multiplies<>());
    file.tensors.push_back(slice);
  }
  return {file};
}

inline MemoryWork work_of(const Setup& c, const EngineOptions& options) {
  MemoryWork work;
  work.load = no_files(options);
  // Three micro-batches of two; a simulation runs two.
  work.inference = {6, 200, 150};
  if (c.tower != Setup::Tower::kNone) work.inference.images = kImages;
  work.top_k = work.loss.top_k = c.top_k;
  work.loss.router_balance = c.router_balance;
  work.loss.router_z = c.router_z;
  work.routing = c.routing;
  work.limits.quantization = c.quantization;
  work.limits.latent_cache = c.latents;
  work.limits.routed_experts = c.routing == RoutingLoad::kGiven;
  if (!c.frozen) work.update = work.inference;
  work.loss.kl = c.kl_loss;
  // More than run together, in steps that cut prompts.
  if (c.drafts != Setup::Drafts::kNone) work.limits.drafts = {.num_tokens = 1, .predicts = true};
  work.limits.max_sequences = 8;
  work.limits.max_step_tokens = 256;
  work.limits.tensor_parallel = c.decoding;
  if (c.head == HeadKind::kLm) work.rollouts = {{"generate", 6, 2, 100, 20, work.inference.images}};
  return work;
}

}  // namespace troupe::test
