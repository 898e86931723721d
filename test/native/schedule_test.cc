#include "megatron/schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "check.h"

using namespace troupe;
using Kind = PipelineStep::Kind;

namespace {

struct Run {
  double makespan = 0;
  std::vector<double> work;             // of each stage
  std::vector<int64_t> most_in_flight;  // of each stage
  size_t done = 0, all = 0;             // steps
};

// Runs the schedules of all stages against each other with messages that block both ends until the other is
// there, and checks on the way that nothing is used before it exists.
Run run(PipelineOrder order, const PipelineShape& shape, double forward_time, double backward_time) {
  Run run;
  const auto stages = static_cast<size_t>(shape.stages);
  std::vector<std::vector<PipelineStep>> steps;
  for (int64_t stage = 0; stage < shape.stages; ++stage)
    steps.push_back(pipeline_schedule(order, shape, stage));
  std::vector<size_t> next(stages, 0);
  std::vector<double> time(stages, 0);
  std::vector<int64_t> in_flight(stages, 0);
  run.work.assign(stages, 0);
  run.most_in_flight.assign(stages, 0);
  using Key = std::tuple<int64_t, int64_t>;  // part, micro-batch
  std::set<Key> activations_there, gradients_there, forwarded, backwarded;
  const int64_t parts = shape.stages * shape.chunks;
  for (const auto& own : steps) run.all += own.size();
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < stages; ++s) {
      while (next[s] < steps[s].size() && steps[s][next[s]].computes()) {
        const PipelineStep& step = steps[s][next[s]++];
        const int64_t part = step.chunk * shape.stages + static_cast<int64_t>(s);
        const Key key{part, step.micro};
        if (step.kind == Kind::kForward) {
          CHECK(part == 0 || activations_there.count(key) == 1);
          CHECK(forwarded.insert(key).second);
          run.most_in_flight[s] = std::max(run.most_in_flight[s], ++in_flight[s]);
          if (order == PipelineOrder::kForward) --in_flight[s];
        } else {
          CHECK(forwarded.count(key) == 1);
          CHECK(part == parts - 1 || gradients_there.count(key) == 1);
          CHECK(backwarded.insert(key).second);
          --in_flight[s];
        }
        const double took = step.kind == Kind::kForward ? forward_time : backward_time;
        time[s] += took;
        run.work[s] += took;
        ++run.done;
        moved = true;
      }
      if (next[s] == steps[s].size() || !steps[s][next[s]].sends()) continue;
      const PipelineStep& send = steps[s][next[s]];
      const auto r = static_cast<size_t>(send.peer);
      CHECK(r != s && r < stages);
      if (next[r] == steps[r].size()) continue;
      const PipelineStep& take = steps[r][next[r]];
      const bool gradient = send.kind == Kind::kSendGradient;
      const int64_t from = send.chunk * shape.stages + static_cast<int64_t>(s);
      const int64_t to = take.chunk * shape.stages + static_cast<int64_t>(r);
      const Kind wanted = gradient ? Kind::kReceiveGradient : Kind::kReceiveActivations;
      // The receiver is at another step of its own before this one.
      if (take.kind != wanted || take.peer != static_cast<int64_t>(s)) continue;
      CHECK(take.micro == send.micro && to == from + (gradient ? -1 : 1));
      CHECK((gradient ? backwarded : forwarded).count({from, send.micro}) == 1);
      CHECK((gradient ? gradients_there : activations_there).insert({to, take.micro}).second);
      time[s] = time[r] = std::max(time[s], time[r]);
      ++next[s];
      ++next[r];
      run.done += 2;
      moved = true;
    }
  }
  CHECK(run.done == run.all);  // else they wait for each other
  CHECK(static_cast<int64_t>(forwarded.size()) == parts * shape.micro_batches);
  CHECK(backwarded.size() == (order == PipelineOrder::kForward ? 0 : forwarded.size()));
  for (size_t s = 0; s < stages; ++s) run.makespan = std::max(run.makespan, time[s]);
  return run;
}

std::string name_of(const PipelineShape& shape) {
  return "p " + std::to_string(shape.stages) + " m " + std::to_string(shape.micro_batches) + " v " +
         std::to_string(shape.chunks);
}

}  // namespace

TEST(every_micro_batch_passes_every_chunk_once_and_blocking_messages_never_wait_for_ever) {
  for (int64_t p = 1; p <= 6; ++p) {
    for (int64_t v = 1; v <= (p == 1 ? 1 : 3); ++v) {
      for (int64_t m = 0; m <= 3 * p + 2; ++m) {
        const PipelineShape shape{p, m, v};
        for (const auto order : {PipelineOrder::kGPipe, PipelineOrder::k1F1B, PipelineOrder::kForward}) {
          const int before = test::failures();
          const Run all = run(order, shape, 1, 2);
          for (int64_t s = 0; s < p; ++s)
            CHECK(all.most_in_flight[static_cast<size_t>(s)] == most_in_flight(order, shape, s));
          test::report(test::failures() == before, __FILE__, __LINE__, name_of(shape));
        }
      }
    }
  }
}

TEST(in_flight_is_bounded_by_the_stages_behind_not_by_the_micro_batches) {
  for (int64_t stage = 0; stage < 4; ++stage) {
    CHECK(most_in_flight(PipelineOrder::k1F1B, {4, 32, 1}, stage) == 4 - stage);
    CHECK(most_in_flight(PipelineOrder::kGPipe, {4, 32, 1}, stage) == 32);
    CHECK(most_in_flight(PipelineOrder::k1F1B, {4, 2, 1}, stage) == std::min<int64_t>(2, 4 - stage));
    // 2 (p - s - 1) + (v - 1) p forwards of a chunk before the first backward.
    CHECK(most_in_flight(PipelineOrder::k1F1B, {4, 32, 3}, stage) == 2 * (3 - stage) + 8 + 1);
  }
}

TEST(bubbles_of_blocking_messages_are_those_of_the_formula) {
  for (const int64_t p : {2, 3, 4, 8}) {
    for (const int64_t v : {1, 2, 4}) {
      for (const int64_t m : {p, 2 * p, 4 * p, 8 * p}) {
        for (const int64_t cost : {1, 2, 3}) {
          for (const auto order : {PipelineOrder::kGPipe, PipelineOrder::k1F1B}) {
            if (order == PipelineOrder::kGPipe && v > 1) continue;
            const PipelineShape shape{p, m, v, cost};
            const Run all = run(order, shape, 1, static_cast<double>(cost));
            const double formula = bubble_fraction(shape);
            for (const double work : all.work) {
              const double bubble = all.makespan / work - 1;
              if (v == 1 || cost < 3) {
                CHECK_CLOSE(bubble, formula, 1e-12);
              } else {
                CHECK(bubble <= 1.75 * formula + 1e-12);
              }
            }
          }
        }
      }
    }
  }
}

TEST(without_chunks_the_bubble_does_not_depend_on_the_cost_that_was_planned_with) {
  for (const double backward : {0.5, 1.5, 4.0}) {
    const Run all = run(PipelineOrder::k1F1B, {4, 16, 1}, 1, backward);
    CHECK_CLOSE(all.makespan / all.work[0] - 1, 3.0 / 16, 1e-12);
  }
}

TEST(shapes_that_make_no_sense_are_refused) {
  CHECK_THROWS(pipeline_schedule(PipelineOrder::k1F1B, {2, 4, 1}, 2),
               "stage below the number of stages, got 2 of 2");
  CHECK_THROWS(pipeline_schedule(PipelineOrder::k1F1B, {2, -1, 1}, 0),
               "at least 0 micro-batches, 1 chunk and a cost of 1, got -1, 1 and 2");
  CHECK_THROWS(pipeline_schedule(PipelineOrder::k1F1B, {1, 4, 2}, 0),
               "2 chunks per stage (vpp) need at least 2 stages");
  CHECK_THROWS(parse_pipeline_order("zb"), "expected schedule gpipe or 1f1b, got zb");
}

TEST_MAIN()
