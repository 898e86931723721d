// Learning-rate schedules.
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace troupe {

namespace {

constexpr double kPi = 3.14159265358979323846;

}  // namespace

ScheduleKind parse_schedule(const std::string& name) {
  if (name == "constant") return ScheduleKind::kConstant;
  if (name == "cosine") return ScheduleKind::kCosine;
  fail(ErrorCode::kInvalidArgument, "[optim] unknown learning-rate schedule '", name,
       "'; known: constant, cosine");
}

void validate(const Schedule& schedule) {
  require(schedule.kind != ScheduleKind::kCosine || schedule.total_steps > 0, ErrorCode::kInvalidArgument,
          "[optim] the cosine schedule needs the total number of steps but got ", schedule.total_steps);
}

double learning_rate(const Schedule& schedule, double lr, int64_t step) {
  if (step < schedule.warmup_steps) {
    return lr * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.kind == ScheduleKind::kConstant) return lr;
  validate(schedule);
  const int64_t length = std::max<int64_t>(1, schedule.total_steps - schedule.warmup_steps);
  // verl's formula would rise again past the end; it stays at the minimum here.
  const double progress =
      std::min(1.0, static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(length));
  const double low = schedule.min_lr_ratio;
  return lr * std::max(low, std::cos(kPi * progress) * (1 - low) / 2 + (1 + low) / 2);
}

}  // namespace troupe
