// An engine that never trains (no optim), and what is frozen in one that trains adapters, is held as it is
// computed with and nothing beside it: 2 bytes a parameter in bfloat16. All that comes out of it has the bits
// of an engine that trains, which rounds its float32 masters.
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "tensor_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kFloat = 4;

struct Layout {
  std::string name;
  int64_t ranks = 1;
  std::function<void(EngineOptions&)> apply = [](EngineOptions&) {};
  bool experts = false;  // for models that have some
};

const std::vector<Layout> kLayouts{
    {"alone"},
    {"alone, offloaded", 1, [](EngineOptions& o) { o.offload.parameters = true; }},
    {"full_shard", 2},
    {"full_shard, offloaded, ahead", 2, [](EngineOptions& o) { o.offload.parameters = o.prefetch = true; }},
    {"shard_grad_op", 2, [](EngineOptions& o) { o.sharding = ShardingStrategy::kShardGradOp; }},
    {"no_shard", 2, [](EngineOptions& o) { o.sharding = ShardingStrategy::kNoShard; }},
    {"tp", 2, [](EngineOptions& o) { o.parallel.tp = 2; }},
    {"tp, sequence parallel", 2,
     [](EngineOptions& o) {
       o.parallel.tp = 2;
       o.sequence_parallel = true;
     }},
    {"pp", 2, [](EngineOptions& o) { o.pipeline.stages = 2; }},
    {"cp", 2, [](EngineOptions& o) { o.parallel.cp = 2; }},
    {"ulysses", 2, [](EngineOptions& o) { o.ulysses = 2; }},
    {"ep", 2, [](EngineOptions& o) { o.parallel.ep = 2; }, /*experts=*/true},
};

EngineOptions base_options(const std::string& variant, HeadKind head) {
  EngineOptions options = tensor_options(variant, head, 1, false);
  options.dtype = at::kBFloat16;
  return options;
}

EngineOptions frozen(EngineOptions options) {
  options.optim.reset();
  return options;
}

std::vector<ParameterInfo> parameters_of(const EngineOptions& options) {
  return create_engine(alone(options))->parameters();
}

bool is_buffer(const std::string& name) {
  const bool of_layer = name.ends_with(".scale") && name.find("router") == std::string::npos;
  return of_layer || name.ends_with("correction_bias");
}

bool is_adapter(const std::string& name) {
  return name.find("lora") != std::string::npos;
}

// What an engine in bfloat16 makes of float32 values.
at::Tensor rounded(const std::string& name, const at::Tensor& values) {
  return is_buffer(name) ? values : values.to(at::kBFloat16).to(at::kFloat);
}

// All parameters in one file, and their values.
struct Weights {
  TensorFile file;
  std::vector<std::pair<std::string, at::Tensor>> values;

  Weights(const std::vector<ParameterInfo>& parameters, const std::string& name)
      : file(placed(parameters, name, "F32")) {
    at::manual_seed(11);
    std::ofstream out(file.path, std::ios::binary);
    for (const ParameterInfo& info : parameters) {
      const at::Tensor drawn = at::randn(info.shape).mul_(0.3);
      // Between two of bfloat16, rounded down and up, a subnormal one, and what a sum would lose the sign of.
      const at::Tensor odd = at::tensor({1 + 0x1p-8, 1 + 0x3p-8, -1e-40, -0.0}, at::kFloat);
      if (drawn.numel() > 4) drawn.view({-1}).narrow(0, 0, 4).copy_(odd);
      out.write(static_cast<const char*>(drawn.const_data_ptr()),
                static_cast<std::streamsize>(drawn.nbytes()));
      values.emplace_back(info.name, drawn);
    }
  }
  ~Weights() { ::unlink(file.path.c_str()); }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  static TensorFile placed(const std::vector<ParameterInfo>& parameters, const std::string& name,
                           const std::string& dtype) {
    TensorFile file{"/tmp/troupe_frozen_" + std::to_string(::getpid()) + "_" + name, "", 0, {}};
    for (const ParameterInfo& info : parameters) {
      file.tensors.push_back({info.name, 0, info.shape[0], false, info.name, file.size, dtype});
      file.size += std::accumulate(info.shape.begin(), info.shape.end(), int64_t{dtype == "F32" ? 4 : 2},
                                   std::multiplies<>());
    }
    return file;
  }
};

// Whole parameters one behind the other.
WeightBucket bucket_of(const std::vector<ParameterInfo>& parameters, const std::string& dtype) {
  WeightBucket bucket{dtype, {}};
  for (const ParameterInfo& info : parameters)
    bucket.chunks.push_back({info.name, 0, info.shape[0], false, info.name, 0, info.shape[0]});
  return bucket;
}

at::Tensor exported(Engine& engine, TensorKind kind, const WeightBucket& bucket) {
  return engine.export_weights(kind, bucket, std::nullopt, false).bytes;
}

std::vector<at::Tensor> rolled_out(Engine& engine, ops::Quantization quantization) {
  RolloutOptions limits;
  limits.max_sequences = 4;
  limits.max_step_tokens = 24;
  limits.kv_cache_bytes = int64_t{1} << 20;
  limits.quantization = quantization;
  engine.open_rollout(limits);
  engine.begin_rollout(0);
  RolloutCommands commands;
  commands.milliseconds = 60'000;
  for (uint64_t id = 0; id < 3; ++id) {
    RolloutRequest request;
    request.id = request.seed = id;
    for (int32_t t = 0; t < 9; ++t) request.prompt.push_back((t * 7 + static_cast<int32_t>(id)) % 50);
    request.sampling.max_new_tokens = 6;
    commands.submit.push_back(std::move(request));
  }
  std::map<uint64_t, std::vector<at::Tensor>> found;
  RolloutTurn turn;
  for (int64_t turns = 0; turns < 100 && !turn.idle; ++turns) {
    turn = engine.rollout_turn(std::exchange(commands, {}));
    for (const RolloutOutput& output : turn.outputs) {
      CHECK(output.error.empty());
      found[output.id].push_back(at::tensor(output.tokens, at::kInt));
      found[output.id].push_back(at::tensor(output.log_probs));
    }
  }
  CHECK(turn.idle && found.size() == 3);
  engine.park_rollout(false);
  std::vector<at::Tensor> all;
  for (const auto& [id, parts] : found) all.insert(all.end(), parts.begin(), parts.end());
  return all;
}

// All that is computed with the weights.
std::vector<at::Tensor> computed(Engine& engine, HeadKind head, const TokenBatch& batch) {
  if (head == HeadKind::kValue) return {engine.compute_values(batch)};
  const LogProbResult result = engine.compute_log_prob(batch, 0.9, true, true);
  const GenerateResult sampled = sample(engine, two_prompts());
  return {result.log_probs, result.entropy, result.sum_pi_squared, sampled.tokens, sampled.log_probs};
}

void check_equal(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  CHECK(actual.size() == expected.size());
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) CHECK(actual[i].equal(expected[i]));
}

// body(rank, communicator), which is null alone.
template <typename Body>
void on_layout(const Layout& layout, Body&& body) {
  if (layout.ranks == 1) return body(0, nullptr);
  test::on_ranks(layout.ranks, body);
}

void check_layout(const std::string& variant, HeadKind head, const Layout& layout, const Weights& weights) {
  EngineOptions options = base_options(variant, head);
  const std::vector<ParameterInfo> parameters = parameters_of(options);
  const int64_t buffers = std::count_if(parameters.begin(), parameters.end(),
                                        [](const ParameterInfo& info) { return is_buffer(info.name); });
  layout.apply(options);
  const int64_t groups = layout.ranks / ranks_per_group(options);
  on_layout(layout, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const TokenBatch batch = long_batch(group_of(options, rank, layout.ranks), round_robin(groups)).tokens;
    const auto trained = create_engine(options, comm), held = create_engine(frozen(options), comm);
    trained->import_tensors(TensorKind::kParam, {weights.file});
    held->import_tensors(TensorKind::kParam, {weights.file});

    // A third of it, but for buffers, which have no second form (of a pipeline each stage has its own).
    const StateBytes all = trained->state_bytes(), own = held->state_bytes();
    const int64_t bytes = own.parameters + own.host.parameters;
    const int64_t beside = 3 * bytes - (all.parameters + all.host.parameters);
    CHECK(bytes > 0 && own.gradients == 0 && own.moments == 0);
    CHECK(beside % (2 * kFloat * 16) == 0 && beside <= buffers * 2 * kFloat * 16);
    CHECK(options.pipeline.stages > 1 || beside == buffers * 2 * kFloat * 16);

    const std::vector<at::Tensor> expected = computed(*trained, head, batch);
    check_equal(computed(*held, head, batch), expected);
    for (const auto& [name, values] : weights.values) {
      CHECK(trained->get_tensor(TensorKind::kParam, name).equal(values));
      CHECK(held->get_tensor(TensorKind::kParam, name).equal(rounded(name, values)));
    }
    // From masters, rounded; from what has been rounded.
    for (const std::string dtype : {"bfloat16", "float32"}) {
      const WeightBucket bucket = bucket_of(parameters, dtype);
      const at::Tensor from = exported(*trained, TensorKind::kParam, bucket);
      const at::Tensor bits = exported(*held, TensorKind::kParam, bucket);
      CHECK(bits.defined() == (rank == 0) && from.defined() == (rank == 0));
      if (dtype == "bfloat16" && rank == 0) CHECK(bits.equal(from));
      // In other hands, which had other weights.
      EngineOptions other = frozen(options);
      other.seed = 77;
      const auto taken = create_engine(other, comm);
      taken->import_weights(bucket, from);
      if (buffers == 0 || dtype == "float32") check_equal(computed(*taken, head, batch), expected);
      const at::Tensor again = exported(*taken, TensorKind::kParam, bucket);
      if (rank == 0) CHECK(again.equal(bits));
    }
    if (head != HeadKind::kLm) return;
    for (const ops::Quantization quantization : {ops::Quantization::kNone, ops::Quantization::kInt8}) {
      if (options.model.moe && quantization != ops::Quantization::kNone) continue;
      const auto a = create_engine(options, comm), b = create_engine(frozen(options), comm);
      a->import_tensors(TensorKind::kParam, {weights.file});
      b->import_tensors(TensorKind::kParam, {weights.file});
      check_equal(rolled_out(*b, quantization), rolled_out(*a, quantization));
    }
  });
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  ::unlink(path.c_str());
  return bytes;
}

}  // namespace

TEST(a_frozen_engine_has_the_bits_of_one_that_trains_in_a_third_of_the_bytes) {
  for (const std::string variant :
       {"qwen2",   "qwen3",    "gpt2",       "gemma2", "qwen3_moe",  "glm4_moe",   "deepseek_v3",
        "gpt_oss", "qwen3_5",  "qwen3_next", "mamba2", "nemotron_h", "olmo3",      "olmo_hybrid",
        "lfm2",    "lfm2_moe", "granite",    "glm4",   "gemma4",     "gemma4_moe", "gemma4_shared"}) {
    for (const HeadKind head : {HeadKind::kLm, HeadKind::kValue}) {
      const EngineOptions options = base_options(variant, head);
      const Weights weights(parameters_of(options), "weights");
      for (const Layout& layout : kLayouts) {
        if (layout.experts && !options.model.moe) continue;
        if (layout.name == "pp" && variant == "gemma4_shared") continue;  // no pipeline may cut it
        const int before = failures();
        check_layout(variant, head, layout, weights);
        report(failures() == before, __FILE__, __LINE__,
               variant + (head == HeadKind::kLm ? ", " : " critic, ") + layout.name);
      }
    }
  }
}

TEST(a_frozen_engine_in_float32_holds_what_it_was_given) {
  EngineOptions options = frozen(base_options("glm4_moe", HeadKind::kLm));
  options.dtype = at::kFloat;
  const Weights weights(parameters_of(options), "weights");
  const auto engine = create_engine(options);
  engine->import_tensors(TensorKind::kParam, {weights.file});
  for (const auto& [name, values] : weights.values)
    CHECK(engine->get_tensor(TensorKind::kParam, name).equal(values));
}

TEST(files_of_a_frozen_engine) {
  for (const Layout& layout : kLayouts) {
    EngineOptions options = base_options("glm4_moe", HeadKind::kLm);
    const std::vector<ParameterInfo> parameters = parameters_of(options);
    const Weights weights(parameters, "weights");
    layout.apply(options);
    const TensorFile wide = Weights::placed(parameters, "wide", "F32");
    const TensorFile narrow = Weights::placed(parameters, "narrow", "BF16");
    const TensorFile of_masters = Weights::placed(parameters, "masters", "BF16");
    on_layout(layout, [&](int64_t, const std::shared_ptr<Communicator>& comm) {
      const auto trained = create_engine(options, comm), held = create_engine(frozen(options), comm);
      trained->import_tensors(TensorKind::kParam, {weights.file});
      held->import_tensors(TensorKind::kParam, {weights.file});
      trained->export_tensors(TensorKind::kParam, {of_masters});
      held->export_tensors(TensorKind::kParam, {wide, narrow});
    });
    std::string expected;
    for (const auto& [name, values] : weights.values) {
      const at::Tensor bits = rounded(name, values);
      expected.append(static_cast<const char*>(bits.const_data_ptr()), bits.nbytes());
    }
    const bool same = bytes_of(wide.path) == expected && bytes_of(narrow.path) == bytes_of(of_masters.path);
    report(same, __FILE__, __LINE__, layout.name);
  }
}

// The base of adapters is as frozen as a reference; the adapters have masters.
TEST(what_adapters_are_trained_on_is_held_as_it_is_computed_with) {
  for (const Layout& layout : kLayouts) {
    EngineOptions options = base_options("qwen3", HeadKind::kLm);
    if (layout.experts) continue;
    const std::vector<ParameterInfo> base = parameters_of(options);
    const EngineOptions plain = options;
    options.lora = attention_adapters(options.model);
    const std::vector<ParameterInfo> parameters = parameters_of(options);
    const Weights weights(parameters, "adapted");
    // W + s B A of the rounded W, in float32.
    EngineOptions exact = options;
    exact.dtype = at::kFloat;
    const auto merging = create_engine(exact);
    merging->import_tensors(TensorKind::kParam, {weights.file});
    const WeightBucket bucket = bucket_of(base, "float32");
    std::vector<at::Tensor> bits;
    for (const auto& [name, values] : weights.values) {
      if (!is_adapter(name))
        bits.push_back(values.to(at::kBFloat16).to(at::kFloat).view({-1}).view(at::kByte));
    }
    merging->import_weights(bucket, at::cat(bits));
    const at::Tensor expected = exported(*merging, TensorKind::kMerged, bucket);
    layout.apply(options);
    on_layout(layout, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
      const TokenBatch batch = long_batch(group_of(options, rank, layout.ranks),
                                          round_robin(layout.ranks / ranks_per_group(options)))
                                   .tokens;
      EngineOptions whole = plain;
      layout.apply(whole);
      const auto engine = create_engine(options, comm), dense = create_engine(whole, comm);
      engine->import_tensors(TensorKind::kParam, {weights.file});
      TensorFile of_base = weights.file;
      std::erase_if(of_base.tensors, [](const TensorSlice& slice) { return is_adapter(slice.param); });
      dense->import_tensors(TensorKind::kParam, {of_base});
      check_equal({engine->compute_log_prob(batch, 1, false, false, /*disable_adapters=*/true).log_probs},
                  {dense->compute_log_prob(batch, 1, false, false).log_probs});
      // 6 bytes of each that is trained, which has 8 of moments; 2 of the base, of which the other has 6.
      const StateBytes bytes = engine->state_bytes(), all = dense->state_bytes();
      const int64_t trained = bytes.moments / 8 * 6;
      CHECK(trained > 0);
      CHECK(3 * (bytes.parameters + bytes.host.parameters - trained) == all.parameters + all.host.parameters);
      const at::Tensor merged = exported(*engine, TensorKind::kMerged, bucket);
      CHECK(merged.defined() == (rank == 0));
      if (rank == 0) CHECK(merged.equal(expected));
      for (const auto& [name, values] : weights.values) {
        const at::Tensor expected = is_adapter(name) ? values : rounded(name, values);
        CHECK(engine->get_tensor(TensorKind::kParam, name).equal(expected));
      }
    });
  }
}

TEST(an_update_is_refused_and_changes_nothing) {
  const EngineOptions options = frozen(base_options("qwen3", HeadKind::kLm));
  const auto engine = create_engine(options);
  const LongBatch batch = long_batch(0, round_robin(1));
  const at::Tensor before = engine->compute_log_prob(batch.tokens, 1, false, false).log_probs;
  CHECK_THROWS(
      engine->update_policy({batch.tokens, batch.mask, batch.a, batch.b, {}, {}, {}}, batch.mini, {}, 1),
      "an inference-only engine (optim: null) cannot be updated");
  CHECK(engine->compute_log_prob(batch.tokens, 1, false, false).log_probs.equal(before));
}

TEST_MAIN()
