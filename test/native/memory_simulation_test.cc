// What is counted on meta tensors against what an engine allocates: docs/planning.md has the table that
// TROUPE_MEMORY_TABLE=1 prints.
#include "engine/memory_simulation.h"

#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "check.h"
#include "comm/communicator.h"
#include "compared_setups.h"
#include "counted.h"
#include "engine/rank_engine.h"
#include "kernels/gemm.h"
#include "kernels/quantized_matrix.h"
#include "ranks.h"
#include "rollout/kv_cache.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr double kTolerance = 0.05;

std::string directory() {
  std::string path = "/tmp/troupe-memory-XXXXXX";
  CHECK(mkdtemp(path.data()) != nullptr);
  return path;
}

// A file of small numbers that has the parameters where `work` says: experts are chosen by chance.
void make_files(MemoryWork& work, const std::string& where) {
  for (TensorFile& file : work.load) {
    file.path = where + "/weights";
    at::manual_seed(7);
    const at::Tensor values = at::randn({file.size / 4}) * 0.02;
    std::FILE* out = std::fopen(file.path.c_str(), "w");
    CHECK(std::fwrite(values.const_data_ptr(), 4, static_cast<size_t>(values.numel()), out) ==
          static_cast<size_t>(values.numel()));
    std::fclose(out);
  }
  work.save = where + "/saved";
}

std::vector<std::vector<PhasePeak>> measured(const Setup& c) {
  const EngineOptions options = options_of(c);
  MemoryWork work = work_of(c, options);
  const std::string where = directory();
  make_files(work, where);
  std::vector<std::vector<PhasePeak>> all(static_cast<size_t>(c.ranks));
  const auto errors = on_ranks(c.ranks, [&](Communicator& comm) {
    const auto count = std::make_shared<ByteCount>();
    const CountAllocations scope(count);
    all[static_cast<size_t>(comm.rank())] =
        run_phases(options, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}), work, *count);
  });
  for (const std::string& error : errors)
    test::report(error.empty(), __FILE__, __LINE__, describe(c) + ": " + error);
  std::system(("rm -r " + where).c_str());
  return all;
}

// Whether this processor packs weights, and multiplies codes, as the one that is simulated.
bool as_simulated(const Setup& c) {
  const at::Tensor weight = at::empty({1, 1}, c.dtype);
  return ops::packs(weight) && (c.quantization == ops::Quantization::kNone || ops::multiplies_codes(weight));
}

}  // namespace

TEST(an_engine_allocates_what_is_simulated) {
  CHECK(kCounted);
  const bool table = std::getenv("TROUPE_MEMORY_TABLE") != nullptr;
  for (const Setup& c : kSetups) {
    if (!as_simulated(c)) continue;
    const std::vector<std::vector<PhasePeak>> actual = measured(c);
    if (actual[0].empty()) continue;  // reported
    const EngineOptions options = options_of(c);
    MemoryWork work = work_of(c, options);
    std::vector<int64_t> most_simulated(actual[0].size()), most(actual[0].size());
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      const SimulatedMemory memory = simulate_memory(options, rank, c.ranks, work, /*gpu=*/false);
      const std::vector<PhasePeak>& own = actual[static_cast<size_t>(rank)];
      CHECK(memory.phases.size() == own.size());
      for (size_t p = 0; p < memory.phases.size(); ++p) {
        const PhasePeak& simulated = memory.phases[p];
        CHECK(simulated.verb == own[p].verb);
        const double ratio = static_cast<double>(simulated.bytes) / static_cast<double>(own[p].bytes);
        test::report(std::abs(ratio - 1) <= kTolerance, __FILE__, __LINE__,
                     describe(c) + " rank " + std::to_string(rank) + " " + simulated.verb + ": simulated " +
                         std::to_string(simulated.bytes) + ", allocated " + std::to_string(own[p].bytes) +
                         ", ratio " + std::to_string(ratio));
        most_simulated[p] = std::max(most_simulated[p], simulated.bytes);
        most[p] = std::max(most[p], own[p].bytes);
      }
    }
    if (table) std::printf("| %s |", describe(c).c_str());
    for (size_t p = 0; table && p < most.size(); ++p) {
      if (c.frozen && actual[0][p].verb == "save") std::printf(" |");  // in place of the update
      std::printf(" %.1f / %.1f (%.3f) |", static_cast<double>(most_simulated[p]) / (1 << 20),
                  static_cast<double>(most[p]) / (1 << 20),
                  static_cast<double>(most_simulated[p]) / static_cast<double>(most[p]));
    }
    if (table) std::printf("\n");
  }
}

// Rows of a tensor at a time: of a large one 16 MiB.
TEST(loading_takes_little_beside_the_parameters) {
  const Setup c{.variant = "qwen3"};
  EngineOptions options = options_of(c);
  options.model.vocab_size = 1 << 17;
  MemoryWork work;
  work.load = work_of(c, options).load;
  constexpr int64_t kPiece = int64_t{16} << 20;
  CHECK(options.model.vocab_size * options.model.hidden_size * 2 > 2 * kPiece);
  const auto beside = [&] {
    const std::vector<PhasePeak> phases = simulate_memory(options, 0, 1, work, false).phases;
    return phases[1].bytes - phases[0].bytes;
  };
  const auto is_a_piece = [&] {
    const int64_t bytes = beside();
    return bytes > kPiece - (1 << 20) && bytes < kPiece + (4 << 20);
  };
  CHECK(is_a_piece());
  options.dtype = at::kBFloat16;  // what is converted goes to its place
  options.optim.reset();
  CHECK(is_a_piece());
  for (TensorSlice& slice : work.load[0].tensors) slice.dtype = "BF16";
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    options.dtype = dtype;
    CHECK(is_a_piece());
  }
}

// The most pages that a rollout for real holds.
int64_t really_held(const EngineOptions& options, const RolloutOptions& limits, const RolloutLoad& load) {
  RankEngine engine(options, make_local_communicator());
  engine.open_rollout(limits);
  engine.begin_rollout(0);
  RolloutCommands commands;
  commands.submit = requests_of(load, options.model, at::kCPU);
  int64_t held = 0;
  for (RolloutTurn turn; !turn.idle; held = std::max(held, turn.stats.pages_held))
    turn = engine.rollout_turn(std::exchange(commands, {}));
  return held;
}

// While a block computes its gradient, the whole gradient of the one behind it is still there, and the parts
// of other ranks, which are as large.
TEST(gradients_that_are_summed_beside_the_backward_take_two_more_of_a_block) {
  EngineOptions options = options_of({.variant = "qwen3", .ranks = 2, .checkpointing = true});
  options.model.vocab_size = 40;  // or else the head's gradient is the largest
  MemoryWork work;
  work.update = work_of({.variant = "qwen3"}, options).update;
  const auto gathered = [&](std::optional<bool> overlap, bool gpu) {
    options.overlap_reduction = overlap;
    for (const PhasePeak& phase : simulate_memory(options, 0, 2, work, gpu).phases) {
      if (phase.verb == "update") return phase.parts[static_cast<size_t>(MemoryPart::kGathered)];
    }
    return int64_t{0};
  };
  int64_t block = 0;
  for (const ParameterInfo& info : parameters_of(options)) {
    if (info.name.rfind("layers.0.", 0) == 0)
      block += std::accumulate(info.shape.begin(), info.shape.end(), int64_t{4}, std::multiplies<>());
  }
  const int64_t more = gathered(true, true) - gathered(false, true);
  CHECK(more >= 2 * block && more < 2 * block + (1 << 20));
  CHECK(gathered({}, true) == gathered(true, true) && gathered({}, false) == gathered(false, false));
}

TEST(a_rollout_holds_the_pages_that_are_planned) {
  const EngineOptions options = options_of({.variant = "qwen3"});
  const int64_t page = KvCache::page_bytes(options.model, options.dtype);
  RolloutOptions limits;
  limits.max_sequences = 8;
  // None takes a page in its last step, after which the numbers are asked for.
  for (const RolloutLoad& load :
       {RolloutLoad{"generate", 5, 4, 70, 50}, RolloutLoad{"generate", 12, 1, 33, 90}}) {
    limits.kv_cache_bytes = 1000 * page;
    const int64_t held = really_held(options, limits, load);
    CHECK(held > 0 && pages_held(load, limits, options.model, options.dtype) == held);
    limits.kv_cache_bytes = (held - 4) * page;
    const int64_t within = really_held(options, limits, load);
    CHECK(within <= held - 4 && pages_held(load, limits, options.model, options.dtype) == within);
  }
}

TEST(threads_hold_tiles_of_their_own) {
  const Setup c{.variant = "qwen3"};
  EngineOptions options = options_of(c);
  const MemoryWork work = work_of(c, options);
  const auto update = [&](int64_t threads) {
    options.num_threads = threads;
    return simulate_memory(options, 0, 1, work, false).phases[3];
  };
  const PhasePeak one = update(1), two = update(2);
  CHECK(one.verb == "update" && two.bytes > one.bytes && update(1).bytes == one.bytes);
}

TEST(a_model_that_no_machine_holds) {
  EngineOptions options = options_of({.variant = "qwen3", .dtype = at::kBFloat16, .checkpointing = true});
  ModelConfig& m = options.model;
  m.vocab_size = 128256;
  m.hidden_size = 8192;
  m.num_layers = 80;
  m.num_heads = 64;
  m.num_kv_heads = 8;
  m.head_dim = 128;
  m.intermediate_size = 28672;
  m.max_positions = 131072;
  m.sliding_windows.assign(80, 0);
  m.rope_inv_freq.assign(64, 0.5);
  options.max_tokens = 16384;
  MemoryWork work;
  work.load = no_files(options);
  work.inference = work.update = {8, 4096, 2048};
  work.rollouts = {{"generate", 32, 8, 2048, 2048}};
  for (const bool gpu : {false, true}) {
    const SimulatedMemory memory = simulate_memory(options, 0, 64, work, gpu);
    CHECK(memory.phases.size() == 6);
    const auto bytes = [&](size_t phase) { return static_cast<double>(memory.phases[phase].bytes); };
    const double gib = 1 << 30;
    const double state =
        static_cast<double>(memory.state.parameters + memory.state.gradients + memory.state.moments);
    CHECK(memory.phases[5].verb == "generate" && memory.phases[3].verb == "update");
    CHECK(bytes(3) > state + 5 * gib && bytes(3) < 100 * gib);
    // All of it in bfloat16, once (and on a CPU a second time, packed), and 4 GiB of pages.
    const double whole = 2.0 * static_cast<double>(memory.parameters);
    CHECK(bytes(5) > state + whole + 4 * gib && bytes(5) < state + (gpu ? 1.1 : 2.1) * whole + 8 * gib);
    const auto pages = static_cast<double>(memory.phases[5].parts[static_cast<size_t>(MemoryPart::kKvCache)]);
    CHECK(pages <= 4 * gib && pages > 3.95 * gib);
  }
}

TEST(work_that_makes_no_sense_is_refused) {
  const EngineOptions options = options_of({.variant = "qwen3"});
  MemoryWork work;
  CHECK_THROWS(simulate_memory(options, 2, 2, work, false), "got rank 2 of 2");
  work.update = {1, 2, 2};
  CHECK_THROWS(simulate_memory(options, 0, 1, work, false), "sequences with a prompt and a response");
  work.update = {1, 513, 2};
  CHECK_THROWS(simulate_memory(options, 0, 1, work, false), "");
  work.update = {1, 8, 2, {{2, 2}}};
  CHECK_THROWS(simulate_memory(options, 0, 1, work, false), "a model that reads text alone, got 1");
  const EngineOptions reads = options_of({.variant = "qwen3", .tower = Setup::Tower::kDeepstack});
  work.update.images = {{2, 2}, {1, 3}};
  CHECK_THROWS(simulate_memory(reads, 0, 1, work, false), "within a prompt of 6 tokens, got 7");
  work.update.images = {{int64_t{1} << 40, int64_t{1} << 40}};
  CHECK_THROWS(simulate_memory(reads, 0, 1, work, false), "within a prompt of 6 tokens, got one of");
  work.update = {};
  work.routing = RoutingLoad::kGiven;
  CHECK_THROWS(simulate_memory(options, 0, 1, work, false), "a model without experts");
  work.routing = RoutingLoad::kNone;
  work.rollouts = {{"generate", 0, 1, 1, 1}};
  CHECK_THROWS(simulate_memory(options, 0, 1, work, false), "at least one prompt");
}

TEST_MAIN()
