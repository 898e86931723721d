#include <ATen/ATen.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "check.h"
#include "failing_allocations.h"
#include "toy_training.h"

// Updates in which memory runs out, before, in and after the optimiser's step: the engine is as it was before
// the step or as it is after it, or says that it is neither and has to be loaded again.

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::array kChanged{TensorKind::kParam, TensorKind::kExpAvg, TensorKind::kExpAvgSq};

struct TemporaryFile {
  TemporaryFile() {
    static int count = 0;
    path = "/tmp/troupe_steps_without_memory_" + std::to_string(::getpid()) + "_" + std::to_string(count++);
  }
  ~TemporaryFile() { ::unlink(path.c_str()); }
  std::string path;
};

struct State {
  at::Tensor values;  // weights and moments, end to end
  int64_t steps;
  bool equals(const State& other) const { return steps == other.steps && values.equal(other.values); }
};

State state_of(Engine& engine) {
  std::vector<at::Tensor> all;
  for (const ParameterInfo& info : engine.parameters()) {
    for (const TensorKind kind : kChanged) {
      if (kind == TensorKind::kExpAvgSq && info.matrix) continue;
      all.push_back(engine.get_tensor(kind, info.name).view({-1}));
    }
  }
  return {at::cat(all), engine.optimizer_steps()};
}

void update(Engine& engine) {
  Share share = share_of(0, std::vector<int64_t>(kSequences, 0));
  share.mini = {{0, share.tokens.size()},
                {share.mini.global_tokens[0] + share.mini.global_tokens[1]},
                {static_cast<double>(kSequences)}};
  engine.update_sft({share.tokens, share.mask}, share.mini, {});
}

// What has become of the state.
enum class End { kBefore, kBetween, kBehind };

End end_of(Engine& engine, const State& before, const State& behind) {
  try {
    const State now = state_of(engine);
    if (now.equals(behind)) return End::kBehind;
    CHECK(now.equals(before));
    return End::kBefore;
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidModel);
    CHECK(std::string(error.what()).find("load a checkpoint") != std::string::npos);
    return End::kBetween;
  }
}

// Of the first one.
int64_t allocations_of_update(const EngineOptions& options) {
  constexpr int64_t kMany = int64_t{1} << 40;
  const auto engine = create_engine(options, nullptr);
  allocations_left = kMany;
  update(*engine);
  const int64_t total = kMany - *allocations_left;
  allocations_left.reset();
  return total;
}

// An engine whose step has failed in the middle, and what its state was.
std::pair<std::unique_ptr<Engine>, State> half_stepped(const EngineOptions& options) {
  const State before = state_of(*create_engine(options, nullptr));
  for (int64_t left = allocations_of_update(options); left > 0; --left) {
    std::unique_ptr<Engine> engine = create_engine(options, nullptr);
    enough_memory(left, [&] { update(*engine); });
    try {
      engine->get_tensor(TensorKind::kParam, "embed.weight");
    } catch (const Error&) {
      return {std::move(engine), before};
    }
  }
  fail(ErrorCode::kInternal, "no allocation of the step has failed");
}

// `allocates`: the step itself.
void check_updates(const EngineOptions& options, bool allocates) {
  const auto make = [&] { return create_engine(options, nullptr); };
  const auto first = make();
  const State before = state_of(*first);
  update(*first);
  const State behind = state_of(*first);
  CHECK(!behind.values.equal(before.values));
  const int64_t total = allocations_of_update(options);
  int64_t ends[3] = {0, 0, 0};
  // From the last allocation backwards, in ever wider steps where there are many of them, until they are
  // those of the passes before the step.
  int64_t failures = 0;
  for (int64_t left = total - 1; left >= 0 && ends[0] < 20; left -= 1 + failures++ / 50) {
    const auto engine = make();
    if (enough_memory(left, [&] { update(*engine); })) continue;
    const End end = end_of(*engine, before, behind);
    ++ends[static_cast<size_t>(end)];
    if (end != End::kBefore) continue;
    // Nothing has happened: it goes on.
    update(*engine);
    CHECK(state_of(*engine).equals(behind));
  }
  CHECK(ends[0] == 20 && ends[2] > 0);
  CHECK((ends[1] > 10) == allocates);
}

}  // namespace

TEST(adamw_takes_no_memory) {
  check_updates(options_of("qwen3", HeadKind::kLm), false);
}

TEST(adamw_over_offloaded_state) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.offload = {.parameters = true, .gradients = true, .moments = true};
  check_updates(options, true);
}

TEST(muon) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.optim->muon = MuonOptions{};
  check_updates(options, true);
}

TEST(a_load_puts_it_right) {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.offload = {.parameters = true, .gradients = true, .moments = true};
  const auto [engine, before] = half_stepped(options);
  // One file for each kind, with a header of four bytes that nobody reads.
  std::vector<std::unique_ptr<TemporaryFile>> files;
  std::vector<TensorFile> layouts;
  for (const TensorKind kind : kChanged) {
    files.push_back(std::make_unique<TemporaryFile>());
    layouts.push_back({files.back()->path, "head", 4, {}});
    for (const ParameterInfo& info : engine->parameters()) {
      int64_t size = 4;
      for (const int64_t extent : info.shape) size *= extent;
      layouts.back().tensors.push_back(
          {info.name, 0, info.shape[0], false, info.name, layouts.back().size, "F32"});
      layouts.back().size += size;
    }
    create_engine(options, nullptr)->export_tensors(kind, {layouts.back()});
  }
  TensorFile other = layouts[0];
  other.path += ".other";
  CHECK_THROWS(engine->export_tensors(TensorKind::kParam, {other}), "load a checkpoint");
  // A load that ends too early is no load.
  TensorFile cut = layouts[0];
  cut.tensors.back().offset = cut.size;
  CHECK_THROWS(engine->import_tensors(TensorKind::kParam, {cut}), cut.path);
  for (size_t i = 0; i < layouts.size(); ++i) {
    CHECK_THROWS(update(*engine), "load a checkpoint");
    engine->import_tensors(kChanged[i], {layouts[i]});
  }
  engine->set_steps(0, 0);
  CHECK(state_of(*engine).equals(before));
  CHECK_THROWS(engine->import_tensors(TensorKind::kParam, {cut}), cut.path);
  CHECK_THROWS(update(*engine), "load a checkpoint");
}

TEST_MAIN()
