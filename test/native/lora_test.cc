#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/counting_allocator.h"
#include "base/simulated.h"
#include "check.h"
#include "engine/engine.h"
#include "kernels/gemm.h"
#include "kernels/linear_log_prob.h"
#include "model/transformer.h"
#include "model/value_head.h"
#include "small_decoder.h"

using namespace troupe;
using namespace troupe::test;

namespace {

const std::vector<std::string> kVariants = {
    "qwen2",       "qwen3",         "gpt2",     "gemma2",     "qwen3_moe",  "glm4_moe",   "deepseek_v3",
    "gpt_oss",     "latent",        "qwen3_5",  "qwen3_next", "mamba2",     "nemotron_h", "olmo3",
    "olmo_hybrid", "lfm2",          "lfm2_moe", "granite",    "granitemoe", "glm4",       "gemma4",
    "gemma4_moe",  "gemma4_shared", "afmoe",    "apertus"};

// Every linear layer, the fused ones in their parts.
LoraOptions all_linear(const ModelConfig& c) {
  LoraOptions lora{4, 2.5, {}};
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const auto add = [&](const std::string& name, const std::string& param, int64_t row, int64_t rows) {
      lora.sites.push_back({prefix + name, prefix + param + ".weight", row, rows});
    };
    if (c.is_linear_layer(layer) && c.linear->rule == LinearRule::kMamba2) {
      add("mamba.in.in_proj", "mamba.in", 0, c.linear->columns());
      add("mamba.out.out_proj", "mamba.out", 0, c.hidden_size);
    } else if (c.is_linear_layer(layer) && c.linear->rule == LinearRule::kShortConv) {
      add("short_conv.in.in_proj", "short_conv.in", 0, c.linear->columns());
      add("short_conv.out.out_proj", "short_conv.out", 0, c.hidden_size);
    } else if (c.is_linear_layer(layer)) {
      const LinearAttentionConfig& delta = *c.linear;
      const int64_t heads = delta.value_heads, values = delta.values();
      const bool by_head = delta.matrices == DeltaMatrices::kByKeyHead;
      const int64_t first = by_head ? delta.channels() + values : delta.channels();
      add("delta.in.first", "delta.in", 0, first);
      if (!by_head) add("delta.in.in_proj_z", "delta.in", first, values);
      add("delta.in.last", "delta.in", delta.columns() - 2 * heads, 2 * heads);
      add("delta.out.out_proj", "delta.out", 0, c.hidden_size);
    } else if (c.latent) {
      const LatentConfig& latent = *c.latent;
      if (latent.query_rank > 0) add("attn.q_a.q_a_proj", "attn.q_a", 0, latent.query_rank);
      add("attn.q.q_proj", "attn.q", 0, c.num_heads * (latent.still_dim + latent.rotary_dim));
      add("attn.kv_a.kv_a_proj", "attn.kv_a", 0, latent.key_rank + latent.rotary_dim);
      add("attn.kv_b.kv_b_proj", "attn.kv_b", 0, c.num_heads * (latent.still_dim + latent.value_dim));
    } else {
      const ModelConfig own = c.at_layer(layer);
      const int64_t queries = (own.attention_gate && !own.gates_apart ? 2 : 1) * own.q_size();
      add("attn.qkv.q", "attn.qkv", 0, queries);
      if (!c.shares_keys(layer)) add("attn.qkv.k", "attn.qkv", queries, own.kv_size());
      if (!c.shares_keys(layer) && !own.values_from_keys)
        add("attn.qkv.v", "attn.qkv", queries + own.kv_size(), own.kv_size());
      if (own.gates_apart) add("attn.qkv.gate", "attn.qkv", queries + 2 * own.kv_size(), own.q_size());
    }
    if (!c.is_linear_layer(layer)) add("attn.out.o", "attn.out", 0, c.hidden_size);
    if (c.is_moe_layer(layer) && c.moe->latent_size > 0) {
      add("moe.latent.in.fc1_latent_proj", "moe.latent.in", 0, c.moe->latent_size);
      add("moe.latent.out.fc2_latent_proj", "moe.latent.out", 0, c.hidden_size);
    }
    if (c.per_layer_size > 0) {
      add("token.in.per_layer_input_gate", "token.in", 0, c.per_layer_size);
      add("token.out.per_layer_projection", "token.out", 0, c.hidden_size);
    }
    if (!c.has_mlp(layer) || (c.is_moe_layer(layer) && !c.moe->beside_mlp)) continue;
    const int64_t size = c.mlp_size(layer);
    add("mlp.in.gate", "mlp.in", 0, size);
    if (c.gated_mlp) add("mlp.in.up", "mlp.in", size, size);
    add("mlp.out.down", "mlp.out", 0, c.hidden_size);
  }
  return lora;
}

// The same model without adapters, its weights W + scale B A.
void merge_into(const SmallModel& adapted, SmallModel& dense) {
  for (const Parameter& p : dense.store.all()) {
    const Parameter& source = adapted.store.at(p.info.name);
    at::Tensor master = p.master;
    master.copy_(source.master);
    for (const AdapterParameters& site : adapted.store.adapters(p.info.name)) {
      const at::Tensor b = adapted.store.at(site.b).master;
      master.narrow(0, site.row, b.size(0)).add_(at::mm(b, adapted.store.at(site.a).master), site.scale);
    }
  }
  dense.store.refresh_compute();
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

at::Tensor weights_for(const TokenBatch& batch) {
  at::manual_seed(5);
  return at::randn({check_layout(batch, kVocabulary, 64).num_response_tokens()});
}

EngineOptions engine_options(const std::string& variant, HeadKind head, bool lora) {
  EngineOptions options;
  options.model = small(variant, head);
  options.max_tokens = 64;
  options.optim = OptimizerOptions{};
  options.optim->lr = 1e-2;
  options.seed = 3;
  if (lora) options.lora = all_linear(options.model);
  return options;
}

MiniBatches one_mini_batch(const TokenBatch& batch) {
  const double tokens = static_cast<double>(weights_for(batch).numel());
  return {{0, batch.size()}, {tokens}, {static_cast<double>(batch.size())}, 1};
}

bool is_adapter(const std::string& name) {
  return name.find(".lora_") != std::string::npos;
}

}  // namespace

// With W' = W + s B A the chain rule gives dA = s B^T dW' and dB = s dW' A^T: the gradients of the merged
// dense model decide.
TEST(log_probs_and_gradients_are_those_of_the_merged_model) {
  at::NoGradGuard no_grad;
  const TokenBatch batch = batch_of(kLengths, kPrompts);
  const at::Tensor weights = weights_for(batch);
  for (const std::string& variant : kVariants) {
    const ModelConfig config = small(variant);
    SmallModel adapted(config, all_linear(config));
    SmallModel dense(config, std::nullopt);
    merge_into(adapted, dense);
    CHECK(relative(adapted.log_probs(batch), dense.log_probs(batch)) < 1e-5);
    adapted.backward(batch, 64, weights, false);
    dense.backward(batch, 64, weights, false);
    // Where vectors are brought to length one, short ones magnify rounding.
    const double limit = config.linear ? 1e-4 : 2e-5;
    int64_t compared = 0;
    for (const Parameter& p : dense.store.all()) {
      CHECK(!adapted.store.at(p.info.name).grad.defined());
      for (const AdapterParameters& site : adapted.store.adapters(p.info.name)) {
        const Parameter& a = adapted.store.at(site.a);
        const Parameter& b = adapted.store.at(site.b);
        const at::Tensor dense_grad = p.grad.narrow(0, site.row, b.master.size(0));
        CHECK(relative(a.grad, at::mm(b.master.t(), dense_grad) * site.scale) < limit);
        CHECK(relative(b.grad, at::mm(dense_grad, a.master.t()) * site.scale) < limit);
        ++compared;
      }
    }
    CHECK(compared == static_cast<int64_t>(all_linear(config).sites.size()));
  }
}

TEST(rows_do_not_depend_on_packing_and_checkpointing_changes_nothing) {
  at::NoGradGuard no_grad;
  const TokenBatch batch = batch_of(kLengths, kPrompts);
  const at::Tensor weights = weights_for(batch);
  for (const std::string& variant : kVariants) {
    const ModelConfig config = small(variant);
    SmallModel model(config, all_linear(config));
    const at::Tensor together = model.log_probs(batch, 4096);
    CHECK(at::isfinite(together).all().item<bool>());
    const at::Tensor packed = model.log_probs(batch, 30);
    // LibTorch's products of small matrices do not keep a row's bits in every place of a tile.
    CHECK(ops::packs(together) ? at::equal(together, packed) : relative(packed, together) < 1e-6);
    const auto gradients = [&](bool checkpointing) {
      model.backward(batch, 64, weights, checkpointing);
      std::vector<at::Tensor> flat;
      for (const ParameterGroup& group : model.store.groups()) {
        if (group.trained()) flat.push_back(group.grad.tensor());
      }
      return at::cat(flat);
    };
    CHECK(at::equal(gradients(false), gradients(true)));
  }
}

TEST(bfloat16_is_near_float32) {
  at::NoGradGuard no_grad;
  const TokenBatch batch = batch_of(kLengths, kPrompts);
  const at::Tensor weights = weights_for(batch);
  const ModelConfig config = small("qwen3");
  SmallModel exact(config, all_linear(config));
  SmallModel rounded(config, all_linear(config), at::kBFloat16);
  CHECK(relative(rounded.log_probs(batch), exact.log_probs(batch)) < 0.1);
  exact.backward(batch, 64, weights, false);
  rounded.backward(batch, 64, weights, false);
  for (size_t g = 0; g < exact.store.groups().size(); ++g) {
    if (!exact.store.groups()[g].trained()) continue;
    CHECK(relative(rounded.store.groups()[g].grad.tensor(), exact.store.groups()[g].grad.tensor()) < 0.1);
  }
}

TEST(adapters_begin_as_nothing_and_can_be_disabled) {
  const TokenBatch batch = batch_of(kLengths, kPrompts);
  const auto base = create_engine(engine_options("qwen3", HeadKind::kLm, false));
  const auto engine = create_engine(engine_options("qwen3", HeadKind::kLm, true));
  const at::Tensor reference = base->compute_log_prob(batch, 1, false, false).log_probs;
  CHECK(at::equal(engine->compute_log_prob(batch, 1, false, false).log_probs, reference));

  const double bound = 1 / std::sqrt(24.0);
  const at::Tensor q = engine->get_tensor(TensorKind::kParam, "layers.0.attn.qkv.q.lora_a");
  const at::Tensor k = engine->get_tensor(TensorKind::kParam, "layers.0.attn.qkv.k.lora_a");
  CHECK(q.sizes() == at::IntArrayRef({4, 24}) && !at::equal(q, k));
  CHECK(q.abs().max().item<double>() <= bound && q.abs().max().item<double>() > 0.9 * bound);
  CHECK_CLOSE(q.std().item<double>(), bound / std::sqrt(3.0), 0.15 * bound);

  const at::Tensor mask = at::ones({reference.numel()}, at::kByte);
  const at::Tensor advantages = weights_for(batch);
  std::vector<at::Tensor> frozen;
  for (const ParameterInfo& info : base->parameters())
    frozen.push_back(engine->get_tensor(TensorKind::kParam, info.name));
  for (int64_t step = 0; step < 2; ++step) {  // B moves first, then A
    const MetricsList metrics = engine->update_policy({batch, mask, reference, advantages, {}, {}, {}, {}},
                                                      one_mini_batch(batch), PolicyLossOptions{}, 1);
    CHECK(metrics[0].at("grad_norm") > 0);
  }
  CHECK(!at::equal(engine->get_tensor(TensorKind::kParam, "layers.0.attn.qkv.q.lora_a"), q));
  CHECK(!at::allclose(engine->compute_log_prob(batch, 1, false, false).log_probs, reference));
  CHECK(at::equal(engine->compute_log_prob(batch, 1, false, false, true).log_probs, reference));
  // The switch holds for one call.
  CHECK(!at::allclose(engine->compute_log_prob(batch, 1, false, false).log_probs, reference));
  const std::vector<ParameterInfo> infos = base->parameters();
  for (size_t i = 0; i < infos.size(); ++i)
    CHECK(at::equal(engine->get_tensor(TensorKind::kParam, infos[i].name), frozen[i]));
  CHECK_THROWS(base->compute_log_prob(batch, 1, false, false, true), "no adapters to disable");
}

TEST(frozen_parameters_have_neither_gradients_nor_moments) {
  for (const HeadKind head : {HeadKind::kLm, HeadKind::kValue}) {
    const auto engine = create_engine(engine_options("qwen3", head, true));
    int64_t trained = 0;
    for (const ParameterInfo& info : engine->parameters()) {
      if (!is_adapter(info.name) && (head == HeadKind::kLm || info.name.rfind("head.", 0) != 0)) {
        CHECK_THROWS(engine->get_tensor(TensorKind::kGrad, info.name), "are frozen");
        continue;
      }
      const int64_t count = engine->get_tensor(TensorKind::kGrad, info.name).numel();
      trained += (count + 15) / 16 * 16 * 4;
    }
    const StateBytes bytes = engine->state_bytes();
    CHECK(bytes.gradients == trained);
    CHECK(bytes.moments == 2 * trained);
  }
}

// What the layers get of a row's token has no gradient then.
TEST(of_frozen_per_layer_embeddings_nothing_is_kept) {
  at::NoGradGuard no_grad;
  const ModelConfig config = small("gemma4_shared");
  const TokenBatch batch = batch_of({9, 30}, {4, 10});
  for (const bool adapters : {false, true}) {
    SmallModel model(config, adapters ? std::optional(all_linear(config)) : std::nullopt);
    const BatchLayout layout = check_layout(batch, config.vocab_size, config.max_positions);
    const MicroBatch micro = pack(layout, 0, layout.size(), 4096)[0];
    const PackedTokens packed = gather(batch, layout, micro, kRowTile);
    StagePass pass(true);
    Stage& stage = model.transformer.stages().front();
    const at::Tensor hidden = stage.forward(&packed, {}, pass);
    CHECK(pass.rows.layer_inputs.defined());
    for (const at::Tensor& kept : {pass.per_layer.embedded, pass.per_layer.product, pass.per_layer.rstd,
                                   pass.rows.layer_input_gradient})
      CHECK(kept.defined() != adapters);
    stage.backward(at::ones_like(hidden), pass);
  }
}

TEST(a_value_model_trains_its_head_too) {
  const TokenBatch batch = batch_of(kLengths, kPrompts);
  const auto engine = create_engine(engine_options("qwen3", HeadKind::kValue, true));
  const at::Tensor values = engine->compute_values(batch);
  const at::Tensor head = engine->get_tensor(TensorKind::kParam, "head.weight");
  const at::Tensor norm = engine->get_tensor(TensorKind::kParam, "norm.weight");
  const at::Tensor mask = at::ones({values.numel()}, at::kByte);
  engine->update_critic({batch, mask, values, weights_for(batch)}, one_mini_batch(batch), ValueLossOptions{});
  CHECK(!at::equal(engine->get_tensor(TensorKind::kParam, "head.weight"), head));
  CHECK(at::equal(engine->get_tensor(TensorKind::kParam, "norm.weight"), norm));
}

TEST(decoding_rows_are_those_of_the_merged_model) {
  at::NoGradGuard no_grad;
  const ModelConfig config = small("qwen3");
  SmallModel adapted(config, all_linear(config));
  SmallModel dense(config, std::nullopt);
  merge_into(adapted, dense);
  const at::Tensor tokens = at::arange(32, at::kInt);
  const at::Tensor positions = at::arange(32, at::kInt);
  const auto qkv_of = [&](SmallModel& model) {
    const at::Tensor x = at::empty({32, config.hidden_size});
    model.transformer.embed(tokens, positions, x);
    const at::Tensor qkv = at::empty({32, config.mixer_inputs(0)});
    model.transformer.attention_inputs(0, x, positions, qkv);
    model.transformer.block_output(0, x, qkv.narrow(1, 0, config.q_size()).contiguous(), {}, x);
    return at::cat({qkv, x}, 1);
  };
  CHECK(relative(qkv_of(adapted), qkv_of(dense)) < 1e-5);
}

// A product that is made first and added then has been rounded to bfloat16 in between. On a simulated GPU its
// memory shows; cuda_kernels_test compares the numbers on a real one.
TEST(gradients_on_a_gpu_are_added_without_a_product_in_between) {
  at::NoGradGuard no_grad;
  install_counting_allocator(at::kMeta);
  constexpr int64_t kTokens = 16, kIn = 4096, kOut = 8192, kRank = 8;
  const SimulateGpu machine(true);
  const auto meta = [](at::IntArrayRef shape, at::ScalarType dtype) {
    return at::empty(shape, at::device(at::kMeta).dtype(dtype));
  };
  const Adapter adapter{meta({kRank, kIn}, at::kBFloat16),
                        meta({kOut, kRank}, at::kBFloat16),
                        meta({kRank, kIn}, at::kFloat),
                        meta({kOut, kRank}, at::kFloat),
                        0,
                        kOut,
                        2.0};
  const at::Tensor x = meta({kTokens, kIn}, at::kBFloat16), dy = meta({kTokens, kOut}, at::kBFloat16);
  const auto count = std::make_shared<ByteCount>();
  const CountAllocations scope(count, at::kMeta);
  adapter.accumulate_grad(dy, x, ops::PackedMatrix::of(x, false));
  CHECK(count->total() == 2 * kTokens * kRank * 2);  // x A^T and dy B
}

TEST(impossible_sites_are_refused_by_name) {
  const auto with = [](const AdapterSite& site, int64_t rank = 4) {
    EngineOptions options = engine_options("qwen3_moe", HeadKind::kLm, false);
    options.lora = LoraOptions{rank, 1, {site}};
    return create_engine(options);
  };
  CHECK_THROWS(with({"layers.0.x", "layers.0.attn.nothing.weight", 0, 4}),
               "is not the weight of a linear layer");
  CHECK_THROWS(with({"layers.0.x", "embed.weight", 0, 4}), "is not the weight of a linear layer");
  CHECK_THROWS(with({"layers.1.x", "layers.1.moe.router.weight", 0, 4}),
               "is not the weight of a linear layer");
  CHECK_THROWS(with({"layers.0.x", "layers.0.attn.out.weight", 20, 8}), "rows 20 to 28 are outside");
  CHECK_THROWS(with({"x", "layers.0.attn.out.weight", 0, 24}), "begins with layers.");
  CHECK_THROWS(with({"layers.0.x", "layers.0.attn.out.weight", 0, 24}, 0), "expected a rank > 0, got 0");
}

TEST_MAIN()
