#include <ATen/ATen.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "check.h"
#include "counted.h"
#include "ranks.h"
#include "rollout/cache_budget.h"
#include "rollout/kv_cache.h"
#include "toy_training.h"

// What engines hold while they are made, used, updated and saved, in bytes that LibTorch was asked for.

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kLayers = 24;
constexpr int64_t kRanks = 4;
constexpr int64_t kFloat = 4;
constexpr int64_t kPadding = 32 * 1024;  // of flat buffers

// Many small blocks beside small embeddings: one block more or less shows.
EngineOptions deep(const std::string& dtype = "float32") {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  ModelConfig& c = options.model;
  c.hidden_size = 64;
  c.num_layers = kLayers;
  c.intermediate_size = 512;
  c.sliding_windows.assign(kLayers, 0);
  options.dtype = parse_dtype(dtype);
  options.gradient_checkpointing = true;
  options.max_tokens = 64;
  return options;
}

struct Sizes {
  int64_t block = 0, root = 0, whole = 0;  // parameters of a block; of embeddings, norm and head; of all
};

Sizes sizes_of(const Engine& engine) {
  Sizes sizes;
  for (const ParameterInfo& info : engine.parameters()) {
    int64_t count = 1;
    for (const int64_t extent : info.shape) count *= extent;
    sizes.whole += count;
    if (info.name.rfind("layers.0.", 0) == 0) sizes.block += count;
    if (info.name.rfind("layers.", 0) != 0) sizes.root += count;
  }
  return sizes;
}

int64_t total(const StateBytes& bytes) {
  return bytes.parameters + bytes.gradients + bytes.moments;
}

// All parameters in one file without a header.
TensorFile file_of(const Engine& engine, const std::string& path) {
  TensorFile file{path, "", 0, {}};
  for (const ParameterInfo& info : engine.parameters()) {
    int64_t count = 1;
    for (const int64_t extent : info.shape) count *= extent;
    file.tensors.push_back({info.name, 0, info.shape[0], false, info.name, file.size, "F32"});
    file.size += count * kFloat;
  }
  return file;
}

// The most that was held during each verb.
struct Peaks {
  int64_t create = 0, load = 0, log_prob = 0, update = 0, save = 0;
  int64_t kept = 0;  // what stays after an update: state, and tables of the rotary embedding
  int64_t state = 0;
  Sizes sizes;
};

// Rank `rank`'s life: it writes `saved` (a name that no rank has written yet) and reads it again.
Peaks live(const EngineOptions& options, std::shared_ptr<Communicator> comm, const std::string& saved) {
  const int64_t rank = comm ? comm->rank() : 0;
  const Share share = share_of(rank, {0, 1, 2, 3, 0, 1, 2, 3});
  const auto count = std::make_shared<ByteCount>();
  const CountAllocations scope(count);
  Peaks peaks;
  const auto peak = [&] {
    const int64_t bytes = count->peak();
    count->restart_peak();
    return bytes;
  };
  const auto engine = create_engine(options, comm);
  peaks.create = peak();
  peaks.sizes = sizes_of(*engine);
  peaks.state = total(engine->state_bytes());
  engine->compute_log_prob(share.tokens, 1, true, false);
  peaks.log_prob = peak();
  engine->update_policy({share.tokens, share.mask, share.a, share.b, {}, {}, {}}, share.mini, {}, 1);
  peaks.update = peak();
  peaks.kept = count->live();
  const TensorFile file = file_of(*engine, saved);
  for (const TensorKind kind : {TensorKind::kParam, TensorKind::kExpAvg}) {
    engine->export_tensors(kind, {file});
    if (comm) comm->barrier({"test", "saved"});
    if (kind == TensorKind::kParam) {
      peaks.save = peak();
      engine->import_tensors(kind, {file});
      peaks.load = peak();
      if (comm) comm->barrier({"test", "loaded"});
      if (rank == 0) std::filesystem::remove(saved);
    }
  }
  peaks.save = std::max(peaks.save, peak());
  return peaks;
}

std::string fresh_file(const std::string& name) {
  const auto path =
      std::filesystem::temp_directory_path() / ("troupe-memory-" + std::to_string(::getpid()) + "-" + name);
  std::filesystem::remove(path);
  return path.string();
}

void check_at_most(int64_t bytes, int64_t bound, const std::string& what) {
  test::report(bytes <= bound, __FILE__, __LINE__,
               what + ": expected at most " + std::to_string(bound) + " bytes, got " + std::to_string(bytes));
}

}  // namespace

TEST(a_rank_never_holds_more_than_its_shard_two_blocks_and_activations) {
  CHECK(kCounted);
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const EngineOptions options = deep(dtype);
    // In one process nothing is gathered: what is there beside the state is activations (and packed weights).
    const std::string alone_file = fresh_file("alone-" + dtype);
    const Peaks alone = live(options, nullptr, alone_file);
    std::filesystem::remove(alone_file);
    std::vector<Peaks> ranks(kRanks);
    const std::string file = fresh_file("ranks-" + dtype);
    const auto errors = on_ranks(kRanks, [&](Communicator& comm) {
      ranks[static_cast<size_t>(comm.rank())] =
          live(options, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}), file);
    });
    std::filesystem::remove(file);
    for (const std::string& error : errors) CHECK(error == "");
    const Sizes& sizes = alone.sizes;
    const int64_t element = dtype == "float32" ? 4 : 2;
    const int64_t parameters = (2 * sizes.block + sizes.root) * element;
    const int64_t gradients = (2 * sizes.block + sizes.root) * kFloat;
    CHECK(sizes.whole * kFloat > 3 * (parameters + gradients));  // or else this would show nothing
    for (const Peaks& rank : ranks) {
      check_at_most(rank.state, alone.state / kRanks + kPadding, dtype + " state");
      check_at_most(rank.create, rank.state + kPadding, dtype + " create");
      check_at_most(rank.log_prob, rank.state + parameters + (alone.log_prob - alone.state),
                    dtype + " log-probs");
      check_at_most(rank.update, rank.state + parameters + gradients + (alone.update - alone.state),
                    dtype + " update");
      // Each rank writes what it holds, and nothing is gathered.
      check_at_most(rank.kept, rank.state + (alone.kept - alone.state) + kPadding, dtype + " kept");
      check_at_most(rank.save, rank.kept + kPadding, dtype + " save");
      check_at_most(rank.load, rank.state + 2 * sizes.block * kFloat, dtype + " load");
    }
  }
}

// Embeddings and head that outweigh all blocks: only one of them, with its gradient, is there at a time.
TEST(embeddings_and_head_are_gathered_one_after_the_other) {
  EngineOptions options = deep();
  ModelConfig& c = options.model;
  c.vocab_size = 20'000;
  c.num_layers = 4;
  c.sliding_windows.assign(4, 0);
  const std::string alone_file = fresh_file("alone-wide"), file = fresh_file("ranks-wide");
  const Peaks alone = live(options, nullptr, alone_file);
  std::filesystem::remove(alone_file);
  std::vector<Peaks> ranks(kRanks);
  const auto errors = on_ranks(kRanks, [&](Communicator& comm) {
    ranks[static_cast<size_t>(comm.rank())] =
        live(options, std::shared_ptr<Communicator>(&comm, [](Communicator*) {}), file);
  });
  std::filesystem::remove(file);
  for (const std::string& error : errors) CHECK(error == "");
  const int64_t matrix = c.vocab_size * c.hidden_size * kFloat;
  CHECK(alone.sizes.root * kFloat >= 2 * matrix);
  const int64_t blocks = 4 * alone.sizes.block * kFloat;
  for (const Peaks& rank : ranks) {
    check_at_most(rank.log_prob, rank.state + matrix + blocks + (alone.log_prob - alone.state), "log-probs");
    check_at_most(rank.update, rank.state + 2 * matrix + blocks + (alone.update - alone.state), "update");
  }
}

// Pages of this process in memory, in bytes.
int64_t resident() {
  int64_t pages = 0, held = 0;
  std::ifstream("/proc/self/statm") >> pages >> held;
  return held * sysconf(_SC_PAGESIZE);
}

// Of what is there and has not been written the system gives no memory.
TEST(gradients_and_moments_take_memory_with_the_first_update) {
  EngineOptions options = deep();
  options.model.vocab_size = 1 << 18;
  const int64_t before = resident();
  const auto engine = create_engine(options, nullptr);
  const StateBytes state = engine->state_bytes();
  CHECK(state.parameters > int64_t{1} << 26 && state.moments == 2 * state.parameters);
  CHECK(resident() - before < state.parameters + state.moments / 4);
}

// gpu_memory_utilization, of a quarter of a CPU's memory.
TEST(a_rollout_has_the_pages_of_the_share_that_is_asked_for) {
  const EngineOptions options = deep();
  const double page = static_cast<double>(KvCache::page_bytes(options.model, options.dtype));
  const double whole = static_cast<double>(cache_budget(at::kCPU, 1));
  for (const double pages : {3.5, 20.5}) {
    RolloutOptions rollout;
    rollout.kv_cache_bytes = 0;
    rollout.memory_share = pages * page / whole;
    const RolloutStats stats = create_engine(options)->open_rollout(rollout);
    CHECK(stats.pages == static_cast<int64_t>(pages));
    CHECK(stats.cache_bytes == static_cast<int64_t>(page) * stats.pages);
  }
}

TEST_MAIN()
