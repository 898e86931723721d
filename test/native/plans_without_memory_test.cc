#include <new>
#include <utility>
#include <vector>

#include "check.h"
#include "failing_allocations.h"
#include "rollout/scheduler.h"

// Plans in which memory runs out: pages and slots of states are all there afterwards, and every request still
// ends.

using namespace troupe;
using troupe::test::allocations_left;

namespace {

constexpr int64_t kRequests = 12, kNewTokens = 24, kPages = 8;

// Requests of a few prompts that begin alike, some of them equal, of sequences that look up drafts. There are
// pages for some of them at a time.
class Requests {
 public:
  explicit Requests(int64_t slots)
      : pool_(kPages),
        scheduler_({.max_sequences = 4,
                    .max_step_tokens = 64,
                    .max_positions = 150,
                    .state_slots = slots,
                    .drafts = {.num_tokens = 3, .min_match = 1}},
                   pool_) {
    for (int64_t id = 0; id < kRequests; ++id) {
      RolloutRequest request;
      request.id = static_cast<uint64_t>(id);
      request.prompt.assign(40, 1);
      request.prompt.resize(static_cast<size_t>(41 + 5 * (id / 2)), static_cast<int32_t>(2 + id / 2));
      request.sampling.max_new_tokens = kNewTokens;
      scheduler_.submit(std::move(request));
    }
  }

  // False: all of them have ended.
  bool step() {
    StepPlan plan = scheduler_.plan();
    if (plan.runs.empty()) return false;
    scheduler_.computed(plan);
    for (PlannedRun& run : plan.runs) {
      snapshots_ += static_cast<int64_t>(run.snapshots.size());
      drafted_ += static_cast<int64_t>(run.states.size());
      copies_ += static_cast<int64_t>(run.copies.size());
      if (run.sequence->remaining() > 0) continue;
      // Of a draft the first token is right.
      if (run.drafted > 0) {
        run.sequence->tokens.push_back(run.guess.tokens[0]);
        scheduler_.guessed(run.guess, 0, true);
        scheduler_.accept(run);
      }
      std::vector<Sequence*> all = run.copies;
      all.push_back(run.sequence);
      for (Sequence* sequence : all) {
        if (sequence->response_length() < kNewTokens) sequence->tokens.push_back(2);
        if (sequence->response_length() == kNewTokens) scheduler_.finish(*sequence);
      }
    }
    scheduler_.settle(plan);
    ended_ += static_cast<int64_t>(scheduler_.take_outputs().size());
    return true;
  }

  // A plan that may make so many allocations; false: it needed no more. A failure that it gets over (of
  // memory for a sort) is one, too.
  bool runs_out_behind(int64_t allocations) {
    allocations_left = allocations;
    try {
      const StepPlan plan = scheduler_.plan();
      const bool all = allocations_left.has_value();
      allocations_left.reset();
      scheduler_.settle(plan);
      if (all) return false;
    } catch (const std::bad_alloc&) {
    }
    allocations_left = 0;  // this takes none
    scheduler_.drop();
    const bool none = allocations_left.has_value();
    allocations_left.reset();
    CHECK(none);
    CHECK(pool_.held() == 0 && pool_.indexed() == 0);
    CHECK(scheduler_.slots().held() == 0 && scheduler_.slots().snapshots() == 0);
    CHECK(scheduler_.running() == 0 && scheduler_.waiting() == kRequests - ended_);
    return true;
  }

  void check_ends() {
    while (step()) {
    }
    CHECK(ended_ == kRequests && pool_.held() == 0 && scheduler_.slots().held() == 0);
  }

  int64_t ended() const { return ended_; }
  int64_t preemptions() const { return scheduler_.preemptions(); }
  int64_t copies() const { return copies_; }
  int64_t drafted() const { return drafted_; }
  int64_t snapshots() const { return snapshots_; }

 private:
  PagePool pool_;
  Scheduler scheduler_;
  int64_t ended_ = 0, copies_ = 0, drafted_ = 0, snapshots_ = 0;
};

// Every allocation of every plan fails once.
void check_all(int64_t slots) {
  int64_t failures = 0;
  for (int64_t step = 0;; ++step) {
    for (int64_t allocations = 0;; ++allocations) {
      Requests requests(slots);
      bool more = true;
      for (int64_t i = 0; i < step && more; ++i) more = requests.step();
      if (!more) {
        CHECK(failures > 300 && requests.preemptions() > 0 && requests.copies() > 0);
        CHECK((requests.drafted() > 0) == (slots > 0) && (requests.snapshots() > 0) == (slots > 0));
        return;
      }
      if (!requests.runs_out_behind(allocations)) break;
      ++failures;
      requests.check_ends();
    }
  }
}

}  // namespace

TEST(pages_are_all_there) {
  check_all(/*slots=*/0);
}

TEST(slots_of_states_are_all_there) {
  check_all(/*slots=*/9);
}

TEST_MAIN()
