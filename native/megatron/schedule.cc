// Orders of work for each stage, and a place in them for every message.
#include "megatron/schedule.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"

namespace troupe {

namespace {

using Kind = PipelineStep::Kind;

struct Compute {
  bool backward;
  int64_t chunk, micro;
};

// All (chunk, micro-batch) of a stage in the order of their forwards, or of their backwards: by groups of p
// micro-batches, so that a group comes round to this stage's next chunk when it has been through all others.
std::vector<Compute> sequence(const PipelineShape& shape, bool backward) {
  std::vector<Compute> all;
  for (int64_t first = 0; first < shape.micro_batches; first += shape.stages) {
    const int64_t last = std::min(first + shape.stages, shape.micro_batches);
    for (int64_t i = 0; i < shape.chunks; ++i) {
      const int64_t chunk = backward ? shape.chunks - 1 - i : i;
      for (int64_t micro = first; micro < last; ++micro) all.push_back({backward, chunk, micro});
    }
  }
  return all;
}

// With a last group that is not whole an order could wait for itself: it is that of whole groups, less what
// is not there.
std::vector<Compute> compute_order(PipelineOrder order, PipelineShape shape, int64_t stage) {
  const int64_t micro_batches = shape.micro_batches;
  shape.micro_batches = (micro_batches + shape.stages - 1) / shape.stages * shape.stages;
  const std::vector<Compute> forwards = sequence(shape, false);
  const std::vector<Compute> backwards = sequence(shape, true);
  std::vector<Compute> all;
  const auto add = [&](const Compute& compute) {
    if (compute.micro < micro_batches) all.push_back(compute);
  };
  // Forwards before the first backward.
  size_t ahead = forwards.size();
  if (order == PipelineOrder::k1F1B) {
    const int64_t after = shape.stages - 1 - stage;
    const int64_t first = shape.chunks == 1 ? after : 2 * after + (shape.chunks - 1) * shape.stages;
    ahead = std::min(ahead, static_cast<size_t>(first));
  }
  for (size_t i = 0; i < ahead; ++i) add(forwards[i]);
  for (size_t i = 0; order != PipelineOrder::kForward && i < backwards.size(); ++i) {
    if (ahead + i < forwards.size()) add(forwards[ahead + i]);
    add(backwards[i]);
  }
  return all;
}

// All stages in one time: each computes in its order as soon as it can, and a message moves at the first
// moment from its making on in which neither end is in the middle of a computation, so that nobody is kept
// from work by it.
class Timeline {
 public:
  Timeline(PipelineOrder order, const PipelineShape& shape) : shape_(shape), order_(order) {
    for (int64_t stage = 0; stage < shape.stages; ++stage) {
      stages_.push_back({compute_order(order, shape, stage), {}, 0, std::nullopt, 0});
    }
    for (int64_t micro = 0; micro < shape.micro_batches; ++micro) there_.insert({false, 0, micro});
    run();
  }

  const std::vector<PipelineStep>& steps(int64_t stage) const {
    return stages_[static_cast<size_t>(stage)].steps;
  }

 private:
  struct Stage {
    std::vector<Compute> order;
    std::vector<PipelineStep> steps;
    size_t begun;
    std::optional<Compute> running;
    int64_t end;
  };
  // What a part has made for its neighbour.
  struct Message {
    bool gradient;
    int64_t from, to, micro;
  };

  int64_t part(size_t stage, int64_t chunk) const {
    return chunk * shape_.stages + static_cast<int64_t>(stage);
  }

  void run() {
    int64_t now = 0;
    do {
      for (size_t s = 0; s < stages_.size(); ++s) finish(s, now);
      std::erase_if(made_, [&](const Message& message) { return move(message); });
      for (size_t s = 0; s < stages_.size(); ++s) begin(s, now);
    } while (advance(now));
    for (size_t s = 0; s < stages_.size(); ++s) {
      require(stages_[s].begun == stages_[s].order.size(), ErrorCode::kInternal, "[pipeline] stage ", s,
              " of ", shape_.stages, " waits for ever in a schedule of ", shape_.micro_batches,
              " micro-batches and ", shape_.chunks, " chunks");
    }
  }
  void finish(size_t s, int64_t now) {
    Stage& stage = stages_[s];
    if (!stage.running || stage.end > now) return;
    const Compute done = *stage.running;
    stage.running.reset();
    const int64_t own = part(s, done.chunk), last = shape_.stages * shape_.chunks - 1;
    if (done.backward) {
      if (own > 0) made_.push_back({true, own, own - 1, done.micro});
    } else if (own < last) {
      made_.push_back({false, own, own + 1, done.micro});
    } else if (order_ != PipelineOrder::kForward) {
      there_.insert({true, own, done.micro});
    }
  }
  bool move(const Message& message) {
    const int64_t p = shape_.stages;
    Stage& sender = stages_[static_cast<size_t>(message.from % p)];
    Stage& receiver = stages_[static_cast<size_t>(message.to % p)];
    if (sender.running || receiver.running) return false;
    const Kind sent = message.gradient ? Kind::kSendGradient : Kind::kSendActivations;
    const Kind taken = message.gradient ? Kind::kReceiveGradient : Kind::kReceiveActivations;
    sender.steps.push_back({sent, message.from / p, message.micro, message.to % p});
    receiver.steps.push_back({taken, message.to / p, message.micro, message.from % p});
    there_.insert({message.gradient, message.to, message.micro});
    return true;
  }
  void begin(size_t s, int64_t now) {
    Stage& stage = stages_[s];
    if (stage.running || stage.begun == stage.order.size()) return;
    const Compute& next = stage.order[stage.begun];
    if (there_.count({next.backward, part(s, next.chunk), next.micro}) == 0) return;
    stage.steps.push_back({next.backward ? Kind::kBackward : Kind::kForward, next.chunk, next.micro});
    stage.running = next;
    stage.end = now + (next.backward ? shape_.backward_cost : 1);
    ++stage.begun;
  }
  // To the next moment at which something ends.
  bool advance(int64_t& now) const {
    int64_t next = std::numeric_limits<int64_t>::max();
    for (const Stage& stage : stages_) {
      if (stage.running) next = std::min(next, stage.end);
    }
    now = next;
    return next != std::numeric_limits<int64_t>::max();
  }

  PipelineShape shape_;
  PipelineOrder order_;
  std::vector<Stage> stages_;
  std::vector<Message> made_;                           // and not yet moved
  std::set<std::tuple<bool, int64_t, int64_t>> there_;  // gradient, part, micro-batch: can be computed with
};

void check(const PipelineShape& shape, int64_t stage) {
  require(shape.stages >= 1 && stage >= 0 && stage < shape.stages, ErrorCode::kInvalidArgument,
          "[pipeline] expected a stage below the number of stages, got ", stage, " of ", shape.stages);
  require(shape.micro_batches >= 0 && shape.chunks >= 1 && shape.backward_cost >= 1,
          ErrorCode::kInvalidArgument,
          "[pipeline] expected at least 0 micro-batches, 1 chunk and a cost of 1, got ", shape.micro_batches,
          ", ", shape.chunks, " and ", shape.backward_cost);
  require(shape.chunks == 1 || shape.stages > 1, ErrorCode::kInvalidArgument, "[pipeline] ", shape.chunks,
          " chunks per stage (vpp) need at least 2 stages (pp), got ", shape.stages);
}

}  // namespace

PipelineOrder parse_pipeline_order(const std::string& name) {
  if (name == "gpipe") return PipelineOrder::kGPipe;
  if (name == "1f1b") return PipelineOrder::k1F1B;
  fail(ErrorCode::kInvalidArgument, "[pipeline] expected schedule gpipe or 1f1b, got ", name);
}

std::vector<PipelineStep> pipeline_schedule(PipelineOrder order, const PipelineShape& shape, int64_t stage) {
  check(shape, stage);
  return Timeline(order, shape).steps(stage);
}

int64_t most_in_flight(PipelineOrder order, const PipelineShape& shape, int64_t stage) {
  check(shape, stage);
  if (order == PipelineOrder::kForward) return std::min<int64_t>(1, shape.micro_batches);
  int64_t now = 0, most = 0;
  for (const Compute& compute : compute_order(order, shape, stage)) {
    now += compute.backward ? -1 : 1;
    most = std::max(most, now);
  }
  return most;
}

double bubble_fraction(const PipelineShape& shape) {
  check(shape, 0);
  return shape.micro_batches == 0 ? 0
                                  : static_cast<double>(shape.stages - 1) /
                                        static_cast<double>(shape.chunks * shape.micro_batches);
}

}  // namespace troupe
