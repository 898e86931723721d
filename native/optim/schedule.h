// The learning rate over the update calls of a run.
#pragma once

#include <cstdint>
#include <string>

namespace troupe {

enum class ScheduleKind { kConstant, kCosine, kLinear, kInverseSquareRoot, kWsd };
// constant | cosine | linear | inverse_square_root | WSD; kInvalidArgument for other names.
ScheduleKind parse_schedule(const std::string& name);

// How the rate of WSD (warm-up, stable, decay) falls.
enum class WsdDecay { kLinear, kCosine, kExponential, kMinusSqrt };
// linear | cosine | exponential | minus_sqrt; kInvalidArgument for other names.
WsdDecay parse_wsd_decay(const std::string& name);

// Linear warm-up, and what follows it. The formulas are verl's for constant and cosine
// (verl/utils/torch_functional.py) and Megatron-LM's for the others and for where warm-up starts
// (OptimizerParamScheduler.get_lr): docs/numerics.md.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup_steps = 0;
  int64_t total_steps = -1;  // needed by all kinds but constant
  double min_lr_ratio =
      0;  // of the peak: where the rate ends, and no schedule falls below it after the warm-up
  double init_lr_ratio = 0;     // of the peak: where the warm-up starts
  double num_cycles = 0.5;      // waves of the cosine after the warm-up; half a wave falls once
  int64_t first_step = 0;       // number of the first step: 0, or 1 as torchtitan counts
  int64_t wsd_decay_steps = 0;  // last steps of WSD, in which it falls
  WsdDecay wsd_decay = WsdDecay::kExponential;
};
// kInvalidArgument naming what is missing, and what is out of bounds.
void validate(const Schedule& schedule);

// Of step `step` (0-based count of steps already taken) under the peak rate `lr`. Past the end of the
// schedule the rate is the one that it ended at. kInvalidArgument as validate.
double learning_rate(const Schedule& schedule, double lr, int64_t step);

}  // namespace troupe
