// An export on one of whose ranks memory runs out while it merges adapters: the others do not wait for it.
#include <ATen/ATen.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "failing_allocations.h"
#include "ranks.h"
#include "toy_training.h"
#include "watched.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kRanks = 3, kFailing = 1;

EngineOptions adapted() {
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.lora = LoraOptions{4, 2.5, {{"layers.0.attn.out.o", "layers.0.attn.out.weight", 0, 0}}};
  options.lora->sites[0].rows = options.model.hidden_size;
  return options;
}

// The whole model, without its adapters' parameters.
TensorFile file_of(const std::vector<ParameterInfo>& parameters) {
  TensorFile file{"/tmp/troupe_export_without_memory_" + std::to_string(::getpid()), "head", 4, {}};
  for (const ParameterInfo& info : parameters) {
    file.tensors.push_back({info.name, 0, info.shape[0], false, info.name, file.size, "F32"});
    file.size += 4 * std::accumulate(info.shape.begin(), info.shape.end(), int64_t{1}, std::multiplies<>());
  }
  return file;
}

struct Outcome {
  std::string error;  // of the failing rank
  bool enough = false;
};

// The allocation number `left` behind the gathering of the adapters fails on one rank.
Outcome export_with(int64_t left) {
  Outcome outcome;
  const EngineOptions whole = options_of("qwen3", HeadKind::kLm);
  const TensorFile file = file_of(create_engine(whole)->parameters());
  const auto failures = on_ranks(
      kRanks,
      [&](Communicator& comm) {
        const bool fails = comm.rank() == kFailing;
        bool exporting = false;
        const auto behind = [&](const std::string& description) {
          if (fails && exporting && description.ends_with("(gather)")) allocations_left = left;
        };
        const auto engine = create_engine(adapted(), watched(comm, behind));
        exporting = true;
        try {
          engine->export_tensors(TensorKind::kMerged, {file});
          if (fails) outcome.enough = allocations_left.has_value();
        } catch (const std::exception& error) {
          CHECK(fails);
          outcome.error = error.what();
        }
        allocations_left.reset();
        exporting = false;
        // Nothing is out of step: the next call is as if there had been none before it.
        engine->get_tensor(TensorKind::kMerged, "layers.0.attn.out.weight");
      },
      /*timeout_ms=*/5'000);
  for (const std::string& failure : failures) CHECK(failure == "");
  CHECK(::access(file.path.c_str(), F_OK) == (outcome.enough ? 0 : -1));
  ::unlink(file.path.c_str());
  return outcome;
}

}  // namespace

TEST(a_rank_that_finds_no_memory_to_merge_adapters_keeps_no_other_waiting) {
  // The first of them are those of the copy and of the merged part.
  for (int64_t left = 0; left < 12; ++left) {
    const Outcome outcome = export_with(left);
    CHECK(!outcome.enough && outcome.error != "");
    if (outcome.error == "")
      std::printf("  allocation %lld failed and nobody said so\n", static_cast<long long>(left));
  }
}

TEST_MAIN()
