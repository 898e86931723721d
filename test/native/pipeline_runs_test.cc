#include <ATen/ATen.h>
#include <unistd.h>

#include <filesystem>

#include "counted.h"
#include "generation.h"
#include "megatron/pipeline.h"
#include "ranks.h"
#include "sharded_training.h"

// What a pipeline takes: memory and bytes, against their formulas; and what it writes and samples.

using namespace troupe;
using namespace troupe::test;

namespace {

EngineOptions deep(const std::string& variant, int64_t layers, int64_t pp, int64_t vpp = 1) {
  EngineOptions options = options_of(variant, HeadKind::kLm);
  options.model.num_layers = layers;
  options.model.sliding_windows.assign(static_cast<size_t>(layers), 0);
  if (variant == "qwen3_moe") {
    options.model.moe_layers.assign(static_cast<size_t>(layers), true);
    options.model.moe_layers[0] = false;
  }
  options.pipeline.stages = pp;
  options.pipeline.chunks = vpp;
  return options;
}

// As many sequences as given, all of one length, each a micro-batch of its own, in one mini-batch.
Share equal_sequences(int64_t count, EngineOptions& options) {
  constexpr int64_t kLength = 24, kPrompt = 4;
  options.max_tokens = kLength;
  options.model.max_positions = 64;
  Share share;
  share.tokens = {at::arange(count * kLength, at::kInt).mul(7).remainder(kVocabulary),
                  at::arange(count + 1, at::kInt).mul(kLength), at::full({count}, kPrompt, at::kInt)};
  const int64_t responses = count * (kLength - kPrompt);
  share.a = at::arange(responses, at::kFloat).sin().sub(3.9);
  share.b = at::arange(responses, at::kFloat).cos();
  share.mask = at::ones({responses}, at::kByte);
  share.mini.offsets = {0, count};
  share.mini.global_tokens = {static_cast<double>(responses)};
  share.mini.global_sequences = {static_cast<double>(count)};
  return share;
}

std::shared_ptr<Communicator> borrowed(Communicator& comm) {
  return {&comm, [](Communicator*) {}};
}

void update(Engine& engine, const Share& share) {
  engine.update_policy({share.tokens, share.mask, share.a, share.b, {}, {}, {}}, share.mini, {}, 1);
}

// The most that each stage holds in an update beyond what it holds before.
std::vector<int64_t> update_peaks(int64_t pp, int64_t vpp, PipelineOrder order, int64_t micro_batches) {
  EngineOptions options = deep("qwen3", 4, pp, vpp);
  options.pipeline_order = order;
  const Share share = equal_sequences(micro_batches, options);
  std::vector<int64_t> peaks(static_cast<size_t>(pp));
  check_all(pp, [&](Communicator& comm) {
    const auto count = std::make_shared<ByteCount>();
    const CountAllocations scope(count);
    const auto engine = create_engine(options, borrowed(comm));
    update(*engine, share);  // what the first update makes for good
    count->restart_peak();
    const int64_t before = count->live();
    update(*engine, share);
    peaks[static_cast<size_t>(comm.rank())] = count->peak() - before;
  });
  return peaks;
}

std::string fresh_file(const std::string& name) {
  const auto path =
      std::filesystem::temp_directory_path() / ("troupe-pipeline-" + std::to_string(::getpid()) + "-" + name);
  std::filesystem::remove(path);
  return path.string();
}

// All parameters in one file without a header.
TensorFile file_of(const Engine& engine, const std::string& path) {
  TensorFile file{path, "", 0, {}};
  for (const ParameterInfo& info : engine.parameters()) {
    int64_t count = 1;
    for (const int64_t extent : info.shape) count *= extent;
    file.tensors.push_back({info.name, 0, info.shape[0], false, info.name, file.size, "F32"});
    file.size += count * 4;
  }
  return file;
}

constexpr TensorKind kKinds[] = {TensorKind::kParam, TensorKind::kExpAvg, TensorKind::kExpAvgSq};

void save(Engine& engine, const std::string& path) {
  for (const TensorKind kind : kKinds)
    engine.export_tensors(kind, {file_of(engine, path + std::to_string(static_cast<int>(kind)))});
}

void load(Engine& engine, const std::string& path) {
  for (const TensorKind kind : kKinds)
    engine.import_tensors(kind, {file_of(engine, path + std::to_string(static_cast<int>(kind)))});
}

at::Tensor weights_of(Engine& engine) {
  std::vector<at::Tensor> all;
  for (const ParameterInfo& info : engine.parameters())
    all.push_back(engine.get_tensor(TensorKind::kParam, info.name).view({-1}));
  return at::cat(all);
}

// Runs `body` on an engine over pp x dp x tp ranks, or on one alone (pp 0).
void on_engine(EngineOptions options, int64_t pp, int64_t vpp, int64_t dp,
               const std::function<void(Engine&, int64_t rank)>& body, int64_t tp = 1) {
  options.pipeline.stages = std::max<int64_t>(pp, 1);
  options.pipeline.chunks = vpp;
  options.parallel.tp = tp;
  if (pp == 0) return body(*create_engine(options), 0);
  check_all(pp * dp * tp,
            [&](Communicator& comm) { body(*create_engine(options, borrowed(comm)), comm.rank()); });
}

}  // namespace

TEST(a_stage_holds_the_activations_of_as_many_micro_batches_as_there_are_stages_behind_it) {
  CHECK(kCounted);
  for (const auto& [pp, vpp] : {std::pair<int64_t, int64_t>{4, 1}, {2, 2}}) {
    // With all forwards first, each further micro-batch adds its activations.
    const std::vector<int64_t> four = update_peaks(pp, 1, PipelineOrder::kGPipe, 4);
    const std::vector<int64_t> eight = update_peaks(pp, 1, PipelineOrder::kGPipe, 8);
    const std::vector<int64_t> peaks = update_peaks(pp, vpp, PipelineOrder::k1F1B, 8);
    for (int64_t stage = 0; stage < pp; ++stage) {
      const auto s = static_cast<size_t>(stage);
      const double each = static_cast<double>(eight[s] - four[s]) / 4;  // of all chunks
      const double rest = static_cast<double>(four[s]) - 4 * each;
      const int64_t flights = most_in_flight(PipelineOrder::k1F1B, {pp, 8, vpp}, stage);
      // And what is on its way: one message, and the packing of the micro-batch that comes next.
      const double bound =
          rest + each * static_cast<double>(flights) / static_cast<double>(vpp) + 128 * 24 * 4 + 4096;
      std::printf(
          "  pp %ld vpp %ld stage %ld: a micro-batch %.0f bytes, %ld in flight, peak %ld, bound %.0f, gpipe "
          "%ld\n",
          pp, vpp, stage, each, flights, peaks[s], bound, eight[s]);
      CHECK(each > 100'000);
      CHECK(static_cast<double>(peaks[s]) <= bound);
      CHECK(static_cast<double>(peaks[s]) >= 0.9 * bound);
    }
  }
}

TEST(samples_of_a_pipeline_are_those_of_one_process) {
  const test::PromptBatch prompts{
      at::tensor({1, 2, 3, 4, 5, 6, 7}, at::kInt), at::tensor({0, 2, 7}, at::kInt), 2, {7, 8, 9, 10}};
  test::SamplingOptions sampling;
  sampling.max_new_tokens = 9;
  sampling.temperature = 0.8;
  for (const std::string variant : {"llama", "qwen2", "qwen3", "qwen3_moe"}) {
    const EngineOptions options = deep(variant, 4, 1);
    test::GenerateResult expected;
    on_engine(options, 0, 1, 1,
              [&](Engine& engine, int64_t) { expected = test::generate(engine, prompts, sampling); });
    CHECK(expected.tokens.numel() > 0);
    for (const auto& [pp, vpp, dp] :
         {std::tuple<int64_t, int64_t, int64_t>{2, 1, 1}, {2, 2, 1}, {4, 1, 1}, {2, 1, 2}}) {
      on_engine(options, pp, vpp, dp, [&](Engine& engine, int64_t) {
        const test::GenerateResult actual = test::generate(engine, prompts, sampling);
        CHECK(actual.tokens.equal(expected.tokens));
        CHECK(actual.log_probs.equal(expected.log_probs));
      });
    }
  }
}

TEST(a_run_saved_on_a_pipeline_continues_on_one_process_and_the_other_way_round) {
  for (const std::string variant : {"qwen3_moe", "gpt2"}) {  // experts; tied embeddings
    EngineOptions options = deep(variant, 4, 1);
    const Share share = equal_sequences(4, options);
    at::Tensor uninterrupted;
    on_engine(options, 0, 1, 1, [&](Engine& engine, int64_t) {
      for (int i = 0; i < 4; ++i) update(engine, share);
      uninterrupted = weights_of(engine);
    });
    using Place = std::tuple<int64_t, int64_t, int64_t>;  // pp, vpp, dp
    const std::vector<std::pair<Place, Place>> ways{
        {{2, 1, 1}, {0, 1, 1}}, {{0, 1, 1}, {2, 1, 1}}, {{2, 2, 2}, {4, 1, 1}}, {{4, 1, 1}, {1, 1, 2}}};
    for (const auto& [from, to] : ways) {
      const std::string path = fresh_file(variant);
      // Ranks of data parallelism share one batch's work.
      const auto share_of_rank = [&](const Place& place, int64_t rank) {
        const int64_t dp = std::get<2>(place);
        Share own = share;
        if (rank % dp == 0) return own;
        own.tokens = {at::empty({0}, at::kInt), at::zeros({1}, at::kInt), at::empty({0}, at::kInt)};
        own.a = own.b = at::empty({0});
        own.mask = at::empty({0}, at::kByte);
        own.mini.offsets = {0, 0};
        return own;
      };
      const auto run = [&](const Place& place, const std::function<void(Engine&, const Share&)>& body) {
        const auto& [pp, vpp, dp] = place;
        on_engine(options, pp, vpp, dp,
                  [&](Engine& engine, int64_t rank) { body(engine, share_of_rank(place, rank)); });
      };
      run(from, [&](Engine& engine, const Share& own) {
        for (int i = 0; i < 2; ++i) update(engine, own);
        save(engine, path);
      });
      run(to, [&](Engine& engine, const Share& own) {
        load(engine, path);
        engine.set_steps(2, 2);
        for (int i = 0; i < 2; ++i) update(engine, own);
        CHECK(relative(weights_of(engine), uninterrupted) < 1e-6);
      });
      for (const TensorKind kind : kKinds)
        std::filesystem::remove(path + std::to_string(static_cast<int>(kind)));
    }
  }
}

TEST(weights_come_out_in_buckets_on_the_first_rank_whatever_stage_has_them) {
  const EngineOptions options = deep("qwen2", 4, 1);
  const auto exported = [](Engine& engine) {
    std::vector<WeightChunk> chunks;
    for (const ParameterInfo& info : engine.parameters())
      chunks.push_back({info.name, 0, info.shape[0], false, info.name, 0, info.shape[0]});
    return engine.export_weights(TensorKind::kParam, {"float32", chunks}, std::nullopt, false);
  };
  at::Tensor expected;
  on_engine(options, 0, 1, 1, [&](Engine& engine, int64_t) { expected = exported(engine).bytes; });
  for (const auto& [vpp, dp, tp] : {std::tuple<int64_t, int64_t, int64_t>{1, 2, 1}, {2, 2, 1}, {1, 1, 2}}) {
    const auto check = [&](Engine& engine, int64_t rank) {
      const ExportedWeights weights = exported(engine);
      CHECK(weights.bytes.defined() == (rank == 0));
      if (rank == 0) CHECK(weights.bytes.equal(expected));
      std::vector<WeightChunk> chunks{{"head.weight", 0, kVocabulary, false, "head", 0, kVocabulary}};
      const at::Tensor values = at::arange(kVocabulary * 24, at::kFloat);
      engine.import_weights({"float32", chunks}, rank == 0 ? values.view(at::kByte) : at::Tensor());
      CHECK(engine.get_tensor(TensorKind::kParam, "head.weight").view({-1}).equal(values));
    };
    on_engine(options, 2, vpp, dp, check, tp);
  }
}

// docs/distributed.md has the formula.
TEST(bytes_sent_by_an_update_are_those_of_the_formula) {
  for (const std::string variant : {"qwen3", "gpt2"}) {
    for (const auto& [pp, vpp] : {std::pair<int64_t, int64_t>{2, 1}, {2, 2}, {4, 1}}) {
      EngineOptions options = deep(variant, 4, pp, vpp);
      constexpr int64_t kMicroBatches = 5;
      const Share share = equal_sequences(kMicroBatches, options);
      std::vector<int64_t> sent(static_cast<size_t>(pp));
      check_all(pp, [&](Communicator& comm) {
        const auto engine = create_engine(options, borrowed(comm));
        const int64_t before = engine->bytes_sent();
        update(*engine, share);
        sent[static_cast<size_t>(comm.rank())] = engine->bytes_sent() - before;
      });
      const int64_t rows = 128, groups = 4 + 2, peers = pp - 1;
      const int64_t message = 16 + rows * options.model.hidden_size * 4;
      for (int64_t stage = 0; stage < pp; ++stage) {
        const bool last = stage == pp - 1;
        // Boundaries behind and before this stage's chunks.
        const int64_t behind = vpp - (last ? 1 : 0), before = vpp - (stage == 0 ? 1 : 0);
        int64_t bytes = kMicroBatches * (behind + before) * message;
        if (last) bytes += 2 * share.a.numel() * 4 * peers;  // log-probs and entropies, to all stages
        bytes += (3 * 8 + groups * 8) * peers;  // counts of micro-batches, squares of the gradients
        const bool tied = options.model.tied_embeddings && (last || stage == 0);
        if (tied) bytes += 16 + 4 * ((kVocabulary * 24 + 15) / 16 * 16 + options.model.max_positions * 24);
        CHECK(sent[static_cast<size_t>(stage)] == bytes);
      }
    }
  }
}

TEST_MAIN()
