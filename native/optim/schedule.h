// The learning rate over the update calls of a run.
#pragma once

#include <cstdint>
#include <string>

namespace troupe {

enum class ScheduleKind { kConstant, kCosine };
// constant | cosine; kInvalidArgument for other names.
ScheduleKind parse_schedule(const std::string& name);

// With linear warm-up from 0; verl's formulas (utils/torch_functional): see docs/numerics.md.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup_steps = 0;
  int64_t total_steps = -1;  // needed by cosine
  double min_lr_ratio = 0;   // of the peak, where cosine ends
};
// kInvalidArgument naming what is missing.
void validate(const Schedule& schedule);

// Of step `step` (0-based count of steps already taken) under the peak rate `lr`.
double learning_rate(const Schedule& schedule, double lr, int64_t step);

}  // namespace troupe
