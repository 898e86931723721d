#include "rollout/scheduler.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "check.h"
#include "kernels/paged_attention.h"

// Who has a turn in a step, who gives pages back for whom, and what a step takes for guesses. Steps are
// played: every token is a 1, and no guess counts.

using namespace troupe;
using kernels::kPagePositions;

namespace {

using Tokens = std::vector<int32_t>;
using Ids = std::vector<uint64_t>;

RolloutRequest request(uint64_t id, size_t prompt, int64_t new_tokens, double priority = 0) {
  RolloutRequest request;
  request.id = id;
  request.prompt.assign(prompt, static_cast<int32_t>(100 + id));
  request.sampling.max_new_tokens = new_tokens;
  request.priority = priority;
  return request;
}

RolloutRequest constrained(RolloutRequest request) {
  request.sampling.constrained = true;
  return request;
}

struct Played {
  Played(const SchedulerLimits& limits, int64_t pages) : pool(pages), scheduler(limits, pool) {}

  // Whose rows the step has computed, in their order.
  Ids step() {
    plan = scheduler.plan();
    scheduler.computed(plan);
    Ids ids;
    drafted.clear();
    for (const PlannedRun& run : plan.runs) {
      ids.push_back(run.sequence->request.id);
      drafted.push_back(run.drafted);
      if (run.sequence->remaining() > 0) continue;
      std::vector<Sequence*> all = run.copies;
      all.insert(all.begin(), run.sequence);
      for (Sequence* sequence : all) {
        sequence->tokens.push_back(1);
        sequence->has_mask = false;
        if (sequence->response_length() < sequence->request.sampling.max_new_tokens) continue;
        ended.push_back(sequence->request.id);
        scheduler.finish(*sequence);
      }
    }
    scheduler.settle(plan);
    return ids;
  }

  bool running(uint64_t id) { return scheduler.find(id)->running; }
  int64_t cached(uint64_t id) { return scheduler.find(id)->output.cached_tokens; }

  PagePool pool;
  Scheduler scheduler;
  StepPlan plan;                 // of the last step
  std::vector<int64_t> drafted;  // by its runs
  Ids ended;                     // in their order
};

SchedulerLimits limits(int64_t sequences, int64_t step_tokens, const DraftOptions& drafts = {}) {
  return {.max_sequences = sequences, .max_step_tokens = step_tokens, .max_positions = 300, .drafts = drafts};
}

// A prompt of ones, for which there are always guesses.
RolloutRequest guessable(uint64_t id, size_t prompt, int64_t new_tokens) {
  RolloutRequest r = request(id, prompt, new_tokens);
  std::fill(r.prompt.begin(), r.prompt.end(), 1);
  r.salt = id;
  return r;
}

constexpr DraftOptions kThree{.num_tokens = 3, .min_match = 1, .max_match = 1};

}  // namespace

TEST(the_next_one_has_the_highest_priority_and_came_first) {
  Played played(limits(1, 100), 10);
  for (const uint64_t id : {0, 1}) played.scheduler.submit(request(id, 5, 2));
  played.scheduler.submit(request(2, 5, 2, /*priority=*/1));
  played.scheduler.submit(request(3, 5, 2));
  played.scheduler.submit(request(4, 5, 2, /*priority=*/1));
  while (!played.step().empty()) {
  }
  CHECK((played.ended == Ids{2, 4, 0, 1, 3}));
}

TEST(what_is_preempted_waits_in_the_same_order) {
  Played played(limits(3, 100), 10);
  for (const uint64_t id : {0, 1, 2}) played.scheduler.submit(request(id, 5, 9));
  played.scheduler.submit(request(3, 5, 9));
  CHECK((played.step() == Ids{0, 1, 2}));
  played.scheduler.preempt_all();
  CHECK((played.step() == Ids{0, 1, 2}));
}

// All need their second page in the same step, and one is left.
TEST(pages_come_from_the_lowest_priority_and_of_these_from_the_newest) {
  for (const bool older_is_lower : {false, true}) {
    Played played(limits(9, 500), 5);
    const double lower = older_is_lower ? -1 : 0;
    for (const uint64_t id : {0, 1, 2, 3})
      played.scheduler.submit(request(id, kPagePositions - 1, 9, id == 1 ? lower : 0));
    CHECK((played.step() == (older_is_lower ? Ids{0, 2, 3, 1} : Ids{0, 1, 2, 3})));
    played.step();
    CHECK(played.pool.available() == 1);
    const uint64_t victim = older_is_lower ? 1 : 3;
    CHECK((played.step() == (older_is_lower ? Ids{0, 2} : Ids{0, 1})));
    CHECK(played.scheduler.preemptions() == 1 && played.scheduler.running() == 3);
    CHECK(!played.running(victim));
  }
}

// It decodes, and therefore comes first in the step, while the other one's prompt is still computed.
TEST(nobody_gives_pages_to_one_that_comes_behind_it) {
  Played played(limits(9, 30), 4);
  played.scheduler.submit(request(0, 29, 9));
  CHECK((played.step() == Ids{0}));
  played.scheduler.submit(request(1, 3 * kPagePositions, 1, /*priority=*/1));
  for (int64_t i = 0; i < 3; ++i) CHECK((played.step() == Ids{0, 1}));
  CHECK(played.pool.available() == 0);
  CHECK((played.step() == Ids{1}));
  CHECK((played.ended == Ids{1}));
  CHECK((played.step() == Ids{0}));
  CHECK(played.scheduler.preemptions() == 0);
}

TEST(one_without_pages_is_not_preempted) {
  Played played(limits(9, 100), 4);
  played.scheduler.submit(request(0, kPagePositions, 60, /*priority=*/1));
  played.scheduler.submit(request(1, kPagePositions + 8, 60));
  played.scheduler.submit(constrained(request(2, 1, 9)));  // waits for its mask
  CHECK((played.step() == Ids{0, 1}) && played.running(2));
  while (played.step().size() == 2) {
  }
  CHECK(played.pool.available() == 0 && played.scheduler.preemptions() == 0 && played.running(2));
}

TEST(one_that_waits_for_its_mask_keeps_nobody_behind_it_waiting) {
  Played played(limits(9, 100), 9);
  played.scheduler.submit(constrained(request(0, 1, 9)));
  played.scheduler.submit(request(1, 5, 9));
  CHECK((played.step() == Ids{1}) && played.running(0));
}

TEST(the_last_pages_and_rows_are_used) {
  Played played(limits(9, 45), 3);
  played.scheduler.submit(request(0, 5, 3));
  played.scheduler.submit(request(1, 40, 3));
  CHECK((played.step() == Ids{0, 1}));
  CHECK(played.plan.rows == 45 && played.pool.available() == 0);
}

TEST(a_prompt_that_is_not_cut_waits_for_a_step_with_room) {
  SchedulerLimits uncut = limits(9, 16);
  uncut.chunked_prefill = false;
  Played played(uncut, 9);
  played.scheduler.submit(request(0, 4, 3));
  played.scheduler.submit(request(1, 12, 1));
  played.scheduler.submit(request(2, 40, 2));
  played.scheduler.submit(request(3, 16, 1));
  CHECK((played.step() == Ids{0, 1}) && played.plan.rows == 16);
  for (int64_t i = 0; i < 2; ++i) CHECK((played.step() == Ids{0}));
  // Longer than a step: one of its own.
  CHECK((played.step() == Ids{2}) && played.plan.rows == 40);
  CHECK((played.step() == Ids{2}) && played.plan.rows == 1);
  CHECK((played.step() == Ids{3}));
}

// As many sequences as a step has rows for.
TEST(no_step_has_more_rows_than_it_may_whoever_decodes) {
  for (const bool chunked : {false, true}) {
    SchedulerLimits few = limits(9, 2);
    few.chunked_prefill = chunked;
    Played played(few, 9);
    for (const uint64_t id : {0, 1, 2, 3}) played.scheduler.submit(request(id, 1, 3));
    while (!played.step().empty()) CHECK(played.plan.rows <= 2);
    CHECK((played.ended == Ids{0, 1, 2, 3}));
  }
}

TEST(guesses_get_the_rows_that_are_left) {
  Played played(limits(9, 4, kThree), 20);
  for (const uint64_t id : {0, 1}) {
    played.scheduler.submit(guessable(id, 3, 9));
    played.step();
  }
  played.step();
  CHECK((played.drafted == std::vector<int64_t>{2, 0}) && played.plan.rows == 4);
}

TEST(guesses_leave_a_page_for_everyone) {
  for (const int64_t pages : {2, 3}) {
    Played played(limits(9, 100, kThree), pages);
    played.scheduler.submit(guessable(0, kPagePositions - 1, 9));
    played.step();
    played.step();
    CHECK((played.drafted == std::vector<int64_t>{pages == 3 ? 3 : 0}));
  }
}

TEST(the_last_token_is_guessed_by_no_step) {
  Played played(limits(9, 100, kThree), 9);
  played.scheduler.submit(guessable(0, 5, 4));
  std::vector<int64_t> all;
  while (!played.step().empty()) all.insert(all.end(), played.drafted.begin(), played.drafted.end());
  CHECK((all == std::vector<int64_t>{0, 2, 1, 0}));
}

// A row that sees the key of another run's, or of another row of its own run.
TEST(rows_are_apart_where_each_sees_only_what_was_there_before) {
  Played decoding(limits(9, 100), 9);
  decoding.scheduler.submit(request(0, kPagePositions - 1, 9));
  decoding.step();
  CHECK(!decoding.plan.apart);
  // The page that this step fills is found by one that lacks its last position alone.
  RolloutRequest next = request(1, kPagePositions - 1, 9);
  next.prompt = decoding.scheduler.find(0)->tokens;
  next.prompt.push_back(3);
  decoding.scheduler.submit(next);
  CHECK((decoding.step() == Ids{0, 1}) && decoding.plan.rows == 2 && !decoding.plan.apart);
  CHECK((decoding.step() == Ids{0, 1}) && decoding.plan.apart);

  Played cut(limits(9, 24), 9);
  cut.scheduler.submit(request(0, 40, 9));
  cut.step();
  cut.step();
  CHECK(cut.plan.rows == 16 && !cut.plan.apart);

  Played drafting(limits(9, 100, kThree), 9);
  drafting.scheduler.submit(guessable(0, 5, 4));
  drafting.step();
  drafting.step();
  CHECK(drafting.plan.rows == 3 && !drafting.plan.apart);
  drafting.step();
  drafting.step();
  CHECK(drafting.plan.rows == 1 && drafting.plan.apart);
}

TEST(what_a_prompt_has_found_is_what_it_found_first) {
  Played played(limits(9, kPagePositions), 9);
  played.scheduler.submit(request(0, 72, 9));
  played.step();
  played.scheduler.preempt_all();
  played.step();  // goes on behind its own page
  CHECK(played.cached(0) == 0);
  played.scheduler.preempt_all();
  // Another sample of it comes before it, and computes it for both.
  RolloutRequest first = request(0, 72, 9, /*priority=*/1);
  first.id = 1;
  played.scheduler.submit(first);
  CHECK((played.step() == Ids{1}) && played.plan.runs[0].copies.size() == 1);
  CHECK(played.cached(0) == 0 && played.cached(1) == 2 * kPagePositions);
  RolloutRequest copy = request(2, 20, 9);
  for (const uint64_t id : {2, 3}) {
    copy.id = id;
    played.scheduler.submit(copy);
  }
  played.step();
  played.scheduler.preempt_all();
  while (!played.running(3)) played.step();
  CHECK(played.cached(2) == 0 && played.cached(3) == 20);
}

TEST(samples_of_a_prompt_are_copies_where_they_may_be_sampled) {
  Played played(limits(9, 100), 20);
  RolloutRequest sample = request(0, 40, 9);
  const auto image = [](int64_t which) {
    return Image{1, 8, at::full({1, 8, 3}, which, at::kByte), static_cast<uint64_t>(which)};
  };
  const auto submit = [&](uint64_t id, RolloutRequest of, int64_t which) {
    of.id = id;
    of.images = {image(which)};
    played.scheduler.submit(of, {{4, 1, 8}});
  };
  submit(0, sample, 7);
  submit(1, sample, 7);
  submit(2, sample, 8);
  submit(3, constrained(sample), 8);
  CHECK((played.step() == Ids{0, 2, 3}));
  CHECK(played.plan.runs[0].copies.size() == 1 && played.plan.runs[1].copies.empty());
  CHECK(played.running(3) && played.scheduler.find(3)->response_length() == 0);
}

TEST(samples_that_have_said_the_same_are_computed_again_together) {
  Played played(limits(9, 100), 9);
  RolloutRequest sample = request(0, 20, 9);
  for (const uint64_t id : {0, 1}) {
    sample.id = id;
    played.scheduler.submit(sample);
  }
  for (int64_t i = 0; i < 2; ++i) played.step();
  played.scheduler.preempt_all();
  CHECK((played.step() == Ids{0}) && played.plan.rows == 22 && played.plan.runs[0].copies.size() == 1);
  CHECK((played.step() == Ids{0, 1}));
}

TEST(a_tail_with_nothing_in_common_is_not_copied) {
  Played played(limits(9, 100), 9);
  played.scheduler.submit(request(0, 40, 1));
  played.step();
  RolloutRequest other = request(0, 40, 1);
  other.prompt[kPagePositions] = 7;
  played.scheduler.submit(other);
  StepPlan plan = played.scheduler.plan();
  CHECK(played.pool.held() == 2);
  CHECK(plan.runs.at(0).sequence->computed == kPagePositions);
}

// Hashes of pages are made of 64 bits: pages of other tokens can have the same one.
TEST(pages_of_one_hash_are_told_apart) {
  const auto pair = [](const Tokens& page, size_t at) {
    return static_cast<uint64_t>(static_cast<uint32_t>(page[at])) << 32 | static_cast<uint32_t>(page[at + 1]);
  };
  constexpr uint64_t kRoot = 5;
  Tokens one(kPagePositions, 3), other(kPagePositions, 3);
  other[0] = 4;
  const uint64_t second =
      pair(one, 2) ^ PagePool::with(kRoot, pair(one, 0)) ^ PagePool::with(kRoot, pair(other, 0));
  other[2] = static_cast<int32_t>(second >> 32);
  other[3] = static_cast<int32_t>(second);
  CHECK(PagePool::chain(kRoot, one.data()) == PagePool::chain(kRoot, other.data()));
  PagePool pool(4);
  const int32_t page = pool.take();
  pool.put(kRoot, one.data(), page);
  CHECK(pool.find(kRoot, one.data()) == page && pool.find(kRoot, other.data()) == -1);
}

TEST_MAIN()
