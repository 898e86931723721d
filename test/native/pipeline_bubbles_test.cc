#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "megatron/pipeline.h"
#include "ranks.h"

// How long stages of a pipeline wait for one another, against the formula.

using namespace troupe;
using namespace troupe::test;

namespace {

using Clock = std::chrono::steady_clock;

// A stage whose computations take a given time.
class Sleeps final : public PipelineWork {
 public:
  Sleeps(std::chrono::microseconds forward, std::chrono::microseconds backward)
      : forward_(forward), backward_(backward) {}

  at::Tensor message(int64_t) override { return at::empty({64}); }
  at::Tensor forward(int64_t, int64_t, const at::Tensor&) override { return spend(forward_); }
  at::Tensor backward(int64_t, int64_t, const at::Tensor&) override { return spend(backward_); }

 private:
  static at::Tensor spend(std::chrono::microseconds time) {
    std::this_thread::sleep_for(time);
    return at::zeros({64});
  }
  std::chrono::microseconds forward_, backward_;
};

// A communicator whose messages carry the time of their sender's clock, which only computations move: both
// ends of a message go on at the later of their times, as where it blocks them.
class Clocked final : public Communicator {
 public:
  Clocked(Communicator& inner, double& now)
      : Communicator(inner.rank(), inner.size()), inner_(inner), now_(now) {}
  std::unique_ptr<Communicator> split(const std::string&, const std::vector<int64_t>&) override {
    return nullptr;
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }

 protected:
  std::function<void()> begin_all_gather(const at::Tensor&, const at::Tensor&) override { return {}; }
  std::function<void()> begin_all_to_all(const at::Tensor&, const at::Tensor&) override { return {}; }
  void move_broadcast(const at::Tensor&, int64_t) override {}
  void move_send(const at::Tensor&, const at::Tensor& tensor, int64_t dst) override {
    inner_.send(tensor, dst, {});
    const at::Tensor mine = at::scalar_tensor(now_, at::kDouble), theirs = at::empty({}, at::kDouble);
    inner_.send(mine, dst, {});
    inner_.recv(theirs, dst, {});
    now_ = std::max(now_, theirs.item<double>());
  }
  void move_recv(const at::Tensor&, const at::Tensor& tensor, int64_t src) override {
    inner_.recv(tensor, src, {});
    const at::Tensor mine = at::scalar_tensor(now_, at::kDouble), theirs = at::empty({}, at::kDouble);
    inner_.recv(theirs, src, {});
    inner_.send(mine, src, {});
    now_ = std::max(now_, theirs.item<double>());
  }

 private:
  Communicator& inner_;
  double& now_;
};

struct Clockwork final : public PipelineWork {
  Clockwork(double backward, double& now) : backward_time(backward), now(now) {}
  at::Tensor message(int64_t) override { return at::empty({8}); }
  at::Tensor forward(int64_t, int64_t, const at::Tensor&) override { return spend(1); }
  at::Tensor backward(int64_t, int64_t, const at::Tensor&) override { return spend(backward_time); }
  at::Tensor spend(double time) {
    now += time;
    return at::zeros({8});
  }
  double backward_time;
  double& now;
};

// Idle time as a part of the work of a stage, by the clocks of the stages.
double clocked_bubble(const PipelineShape& shape) {
  const auto cost = static_cast<double>(shape.backward_cost);
  std::vector<double> ended(static_cast<size_t>(shape.stages));
  check_all(shape.stages, [&](Communicator& comm) {
    double& now = ended[static_cast<size_t>(comm.rank())];
    Clocked clocked(comm, now);
    Clockwork work(cost, now);
    run_pipeline(pipeline_schedule(PipelineOrder::k1F1B, shape, comm.rank()), &clocked, work);
  });
  return *std::max_element(ended.begin(), ended.end()) /
             ((1 + cost) * static_cast<double>(shape.micro_batches * shape.chunks)) -
         1;
}

// The same by the clock on the wall.
double timed_bubble(const PipelineShape& shape, std::chrono::microseconds forward) {
  const std::chrono::microseconds backward = forward * shape.backward_cost;
  std::vector<Clock::time_point> begun(static_cast<size_t>(shape.stages)), ended(begun);
  check_all(shape.stages, [&](Communicator& comm) {
    const auto steps = pipeline_schedule(PipelineOrder::k1F1B, shape, comm.rank());
    Sleeps work(forward, backward);
    comm.barrier({"start", "pipeline"});
    begun[static_cast<size_t>(comm.rank())] = Clock::now();
    run_pipeline(steps, &comm, work);
    ended[static_cast<size_t>(comm.rank())] = Clock::now();
  });
  const double took = std::chrono::duration<double>(*std::max_element(ended.begin(), ended.end()) -
                                                    *std::min_element(begun.begin(), begun.end()))
                          .count();
  return took / (std::chrono::duration<double>(forward + backward).count() *
                 static_cast<double>(shape.micro_batches * shape.chunks)) -
         1;
}

}  // namespace

TEST(bubbles_of_the_runner_are_those_of_the_formula) {
  for (const PipelineShape& shape : {PipelineShape{2, 4, 1}, PipelineShape{4, 8, 1}, PipelineShape{4, 4, 1},
                                     PipelineShape{2, 4, 2}, PipelineShape{4, 8, 2}}) {
    CHECK_CLOSE(clocked_bubble(shape), bubble_fraction(shape), 1e-9);
  }
}

// By the clock on the wall, where the machine has time for it: TROUPE_TEST_TIMED=1.
TEST(measured_bubbles_are_those_of_the_formula_within_a_tenth) {
  using namespace std::chrono_literals;
  if (std::getenv("TROUPE_TEST_TIMED") == nullptr) return;
  for (const PipelineShape& shape : {PipelineShape{2, 4, 1}, PipelineShape{4, 8, 1}, PipelineShape{4, 4, 1},
                                     PipelineShape{2, 4, 2}, PipelineShape{4, 8, 2}}) {
    const double bubble = timed_bubble(shape, 50ms);
    const double formula = bubble_fraction(shape);
    std::printf("  pp %ld, vpp %ld, %ld micro-batches: bubble %.4f, formula %.4f\n", shape.stages,
                shape.chunks, shape.micro_batches, bubble, formula);
    CHECK(bubble >= formula && bubble <= 1.1 * formula);
  }
}

TEST_MAIN()
