// In which order the stages of a pipeline compute and talk, as data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

// kGPipe: all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965). k1F1B: backwards begin as
// soon as they can, so that few micro-batches are in flight (PipeDream-flush: Narayanan et al. 2021,
// arXiv:2006.09503), with v > 1 chunks per stage interleaved (Narayanan et al. 2021, arXiv:2104.04473,
// section 2.2). kForward: no backward.
enum class PipelineOrder { kGPipe, k1F1B, kForward };

// gpipe | 1f1b; kInvalidArgument for other names.
PipelineOrder parse_pipeline_order(const std::string& name);

// p stages, each with v chunks of consecutive layers: chunk c of stage s is part c * p + s of p * v. m
// micro-batches.
struct PipelineShape {
  int64_t stages = 1;
  int64_t micro_batches = 0;
  int64_t chunks = 1;
  // Of a backward, where a forward costs 1; with its forward computed again 3. The schedule is free of
  // deadlocks whatever they really cost; with several chunks its bubble depends on it.
  int64_t backward_cost = 2;
};

// One thing that a stage does. Messages go to or come from `peer`, and `chunk` is the one of this stage that
// made what is sent, or takes what is received.
struct PipelineStep {
  enum class Kind {
    kForward,
    kBackward,
    kSendActivations,
    kReceiveActivations,
    kSendGradient,
    kReceiveGradient
  };
  Kind kind = Kind::kForward;
  int64_t chunk = 0;
  int64_t micro = 0;
  int64_t peer = -1;

  bool computes() const { return kind == Kind::kForward || kind == Kind::kBackward; }
  bool sends() const { return kind == Kind::kSendActivations || kind == Kind::kSendGradient; }
  bool operator==(const PipelineStep&) const = default;
};

// What stage `stage` does, in order. Messages of all stages lie in one order in time, and each stage has its
// own in that order: so they may be blocking at both ends (a send that waits for its receiver), and no stage
// ever waits for one that waits for it. Any number of micro-batches. kInvalidArgument for shapes that make no
// sense, several chunks on one stage among them.
std::vector<PipelineStep> pipeline_schedule(PipelineOrder order, const PipelineShape& shape, int64_t stage);

// How many (chunk, micro-batch) forwards whose backward has not ended a stage has at most at the same time.
int64_t most_in_flight(PipelineOrder order, const PipelineShape& shape, int64_t stage);

// Idle time of every stage as a part of its work, where all forwards take as long as one another, and all
// backwards: (p - 1) / (v m), with v > 1 where p divides m and a backward costs one or two forwards (three:
// up to 1.75 times that).
double bubble_fraction(const PipelineShape& shape);

}  // namespace troupe
