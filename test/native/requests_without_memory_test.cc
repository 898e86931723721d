#include <algorithm>
#include <utility>
#include <vector>

#include "check.h"
#include "failing_allocations.h"
#include "rollout/scheduler.h"

// Requests that come and end while memory runs out: they are there or not, and those that are there end.

using namespace troupe;
using troupe::test::enough_memory;

namespace {

constexpr int64_t kPages = 16, kNewTokens = 20;

RolloutRequest request_of(uint64_t id, int32_t last, bool constrained) {
  RolloutRequest request;
  request.id = id;
  request.prompt.assign(40, 1);
  request.prompt.push_back(last);
  request.sampling.max_new_tokens = kNewTokens;
  request.sampling.presence_penalty = constrained ? 0 : 1;
  request.sampling.constrained = constrained;
  return request;
}

// Of sequences that look up drafts, and have states where there are slots for them.
struct Served {
  explicit Served(int64_t slots)
      : pool(kPages),
        scheduler({.max_sequences = 4,
                   .max_step_tokens = 256,
                   .max_positions = 150,
                   .state_slots = slots,
                   .drafts = {.num_tokens = 3, .min_match = 1}},
                  pool) {}

  // False: there was nothing to do.
  bool step() {
    StepPlan plan = scheduler.plan();
    if (plan.runs.empty()) return false;
    scheduler.computed(plan);
    for (PlannedRun& run : plan.runs) {
      std::vector<Sequence*> all = run.copies;
      all.push_back(run.sequence);
      for (Sequence* sequence : all) {
        if (sequence->remaining() > 0) continue;
        sequence->tokens.push_back(2);
        if (sequence->response_length() == kNewTokens) scheduler.finish(*sequence);
      }
    }
    scheduler.settle(plan);
    return true;
  }

  // Ends everything, and says how many requests that were.
  size_t end_all() {
    for (uint64_t id = 0; id < 8; ++id) {
      if (Sequence* const sequence = scheduler.find(id)) sequence->has_mask = true;
    }
    while (step()) {
    }
    CHECK(scheduler.running() == 0 && scheduler.waiting() == 0);
    CHECK(pool.held() == 0 && scheduler.slots().held() == 0);
    size_t ended = 0;
    for (const RolloutOutput& output : scheduler.take_outputs())
      ended += scheduler.find(output.id) == nullptr ? 1 : 0;
    return ended;
  }

  PagePool pool;
  Scheduler scheduler;
};

// The second of two requests of one prompt, or of two; the first waits, or runs.
void check_submissions(bool constrained, int32_t last, int64_t steps) {
  int64_t failures = 0;
  for (bool enough = false; !enough; ++failures) {
    Served served(/*slots=*/0);
    served.scheduler.submit(request_of(0, 2, /*constrained=*/false));
    for (int64_t i = 0; i < steps; ++i) CHECK(served.step());
    served.scheduler.take_outputs();
    RolloutRequest request = request_of(1, last, constrained);
    enough = enough_memory(failures, [&] { served.scheduler.submit(std::move(request)); });
    CHECK((served.scheduler.find(1) != nullptr) == enough);
    CHECK(served.scheduler.running() + served.scheduler.waiting() == (enough ? 2 : 1));
    CHECK(served.scheduler.take_outputs().size() == (enough && constrained ? 1 : 0));
    served.scheduler.abort(1);
    served.scheduler.submit(request_of(1, last, constrained));
    CHECK(served.end_all() == (enough ? 3 : 2));
  }
  CHECK(failures > 6);
}

// The end of the first of two requests, which have run, or wait.
void check_ends(int64_t slots, int64_t steps) {
  int64_t failures = 0;
  for (bool enough = false; !enough; ++failures) {
    Served served(slots);
    for (const uint64_t id : {0, 1}) served.scheduler.submit(request_of(id, 2, /*constrained=*/false));
    for (int64_t i = 0; i < steps; ++i) CHECK(served.step());
    const int64_t held = served.pool.held();
    enough = enough_memory(failures, [&] { served.scheduler.abort(0); });
    CHECK(served.scheduler.find(0) == nullptr);
    CHECK(served.scheduler.running() + served.scheduler.waiting() == 1);
    CHECK(served.pool.held() == (steps == 0 ? held : held - 1));  // the first page is that of both
    std::vector<RolloutOutput> outputs;
    CHECK(!enough_memory(0, [&] { outputs = served.scheduler.take_outputs(); }) && outputs.empty());
    outputs = served.scheduler.take_outputs();
    CHECK(outputs.size() == 1 && outputs[0].id == 0 && outputs[0].finish == Finish::kAbort);
    // What it has left, or has not, misleads nobody.
    served.scheduler.submit(request_of(0, 2, /*constrained=*/false));
    served.scheduler.submit(request_of(2, 3, /*constrained=*/false));
    CHECK(served.end_all() == 3);
  }
  CHECK(failures > (steps == 0 ? 0 : 4));
}

}  // namespace

TEST(a_request_that_finds_no_memory_is_not_there) {
  for (const bool constrained : {false, true}) {
    for (const int64_t steps : {0, 3}) {
      check_submissions(constrained, /*last=*/2, steps);
      check_submissions(constrained, /*last=*/3, steps);
    }
  }
}

TEST(a_request_ends_without_memory) {
  for (const int64_t slots : {0, 9}) {
    for (const int64_t steps : {0, 3}) check_ends(slots, steps);
  }
}

// As many as a large slab has room for: no time to make them, and no memory.
TEST(pages_that_nobody_has_taken_cost_nothing) {
  constexpr int64_t kMany = 1'000'000;
  int64_t available = 0;
  CHECK(enough_memory(0, [&] { available = PagePool(kMany).available(); }));
  CHECK(available == kMany);
  PagePool pool(kMany);
  std::vector<int32_t> taken, again;
  for (int64_t i = 0; i < 40; ++i) CHECK(pool.take(taken));
  CHECK(pool.size() == kMany && pool.held() == 40 && pool.available() == kMany - 40);
  // Those that have been taken come back without memory for it, and are the first to go again.
  again.reserve(taken.size());
  CHECK(enough_memory(0, [&] {
    for (auto page = taken.rbegin(); page != taken.rend(); ++page) pool.release(*page);
    for (size_t i = 0; i < taken.size(); ++i) again.push_back(pool.take());
  }));
  CHECK(again == taken && pool.held() == 40);
  // One that finds no memory is not taken.
  int64_t failures = 0;
  while (!enough_memory(failures, [&] { pool.take(taken); })) {
    CHECK(taken.size() == 40 && pool.held() == 40);
    ++failures;
  }
  CHECK(failures > 0 && taken.size() == 41 && pool.held() == 41);
}

TEST_MAIN()
