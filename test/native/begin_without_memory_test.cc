// A generation for whose form of the weights a rank finds no memory: nothing that was gathered for it stays.
#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "counted.h"
#include "failing_allocations.h"
#include "generation.h"
#include "ranks.h"
#include "small_decoder.h"
#include "toy_training.h"
#include "watched.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kRanks = 2, kFailing = 1;

EngineOptions sharded() {
  return options_of("qwen3", HeadKind::kLm);
}

// The engine of a rank that has opened a rollout, and its bytes.
struct Opened {
  explicit Opened(const std::shared_ptr<Communicator>& comm)
      : count(std::make_shared<ByteCount>()), scope(count), engine(create_engine(sharded(), comm)) {
    RolloutOptions limits;
    limits.kv_cache_bytes = int64_t{1} << 20;
    engine->open_rollout(limits);
    engine->compute_log_prob(share_of(0, std::vector<int64_t>(kSequences, 0)).tokens, 1, false, false);
  }
  std::shared_ptr<ByteCount> count;
  CountAllocations scope;
  std::unique_ptr<Engine> engine;
};

}  // namespace

TEST(a_generation_that_cannot_begin_on_a_rank_leaves_nothing_gathered_there) {
  // How many gathers there are, and how many bytes come of them.
  int64_t gathers = 0, bytes = 0;
  check_all(kRanks, [&](Communicator& comm) {
    int64_t seen = 0;
    Opened opened(watched(comm, [&](const std::string& description) {
      if (description.find("(generate)") != std::string::npos) ++seen;
    }));
    const int64_t before = opened.count->live();
    seen = 0;
    opened.engine->begin_rollout(0);
    if (comm.rank() == kFailing) {
      gathers = seen;
      bytes = opened.count->live() - before;
    }
    opened.engine->park_rollout(/*preempt=*/false);
    CHECK(opened.count->live() == before);
  });
  CHECK(gathers > 2 && bytes > 0);
  // Behind the last of them what is computed with is made of what has come.
  check_all(kRanks, [&](Communicator& comm) {
    const bool fails = comm.rank() == kFailing;
    int64_t left = 0;
    Opened opened(watched(comm, [&](const std::string& description) {
      if (description.find("(generate)") != std::string::npos && left > 0 && --left == 0)
        allocations_left = 0;
    }));
    const int64_t before = opened.count->live();
    if (fails) left = gathers;
    bool failed = false;
    try {
      opened.engine->begin_rollout(0);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    CHECK(!allocations_left && failed == fails);
    CHECK(fails == (opened.count->live() == before));
    opened.engine->park_rollout(/*preempt=*/false);
    CHECK(opened.count->live() == before);
    // And begins when there is memory.
    opened.engine->begin_rollout(0);
    if (fails) CHECK(opened.count->live() == before + bytes);
    opened.engine->park_rollout(/*preempt=*/false);
  });
}

// Neither do keys of the last step that layers share.
TEST(a_generation_that_has_ended_leaves_nothing_of_its_steps) {
  for (const std::string variant : {"qwen3", "qwen3_moe", "gemma4_moe", "gemma4_shared"}) {
    const auto count = std::make_shared<ByteCount>();
    const CountAllocations scope(count);
    SmallModel model(small(variant));
    model.transformer.begin_step(64, {});  // tables of positions stay
    model.transformer.end_decoding();
    const int64_t before = count->live();
    {
      SamplingOptions sampling;
      sampling.max_new_tokens = 3;
      RolloutOptions limits;
      limits.kv_cache_bytes = int64_t{1} << 20;
      generate(model.transformer, {at::arange(30, at::kInt), at::tensor({0, 30}, at::kInt), 1, {7}}, sampling,
               limits);
    }
    CHECK(count->live() == before);
  }
}

TEST_MAIN()
