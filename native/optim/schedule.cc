// Learning-rate schedules.
#include "optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace troupe {

namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr double kMostCycles = 1e12;

template <typename Value>
using Named = std::pair<std::string_view, Value>;

constexpr std::array<Named<ScheduleKind>, 5> kKinds = {
    {{"constant", ScheduleKind::kConstant},
     {"cosine", ScheduleKind::kCosine},
     {"linear", ScheduleKind::kLinear},
     {"inverse_square_root", ScheduleKind::kInverseSquareRoot},
     {"WSD", ScheduleKind::kWsd}}};
constexpr std::array<Named<WsdDecay>, 4> kDecays = {{{"linear", WsdDecay::kLinear},
                                                     {"cosine", WsdDecay::kCosine},
                                                     {"exponential", WsdDecay::kExponential},
                                                     {"minus_sqrt", WsdDecay::kMinusSqrt}}};

template <typename Value, size_t kCount>
Value parse(const std::array<Named<Value>, kCount>& values, const char* what, const std::string& name) {
  std::string known;
  for (const auto& [text, value] : values) {
    if (text == name) return value;
    known.append(known.empty() ? "" : ", ").append(text);
  }
  fail(ErrorCode::kInvalidArgument, "[optim] unknown ", what, " '", name, "'; known: ", known);
}

bool is_share(double value) {
  return value >= 0 && value <= 1;
}

// Of the way from the peak down to the floor, what is left of it when `done` (0 to 1) of the decay is over.
double left_of_decay(WsdDecay decay, double done) {
  switch (decay) {
    case WsdDecay::kLinear: return 1 - done;
    case WsdDecay::kCosine: return 0.5 * (std::cos(kPi * done) + 1);
    case WsdDecay::kExponential: return 2 * std::pow(0.5, done) - 1;
    case WsdDecay::kMinusSqrt: return 1 - std::sqrt(done);
  }
  return 0;
}

// The rate after the warm-up as a share of the peak. `progress`: the share of the steps after it that are
// over.
double share_of_peak(const Schedule& schedule, int64_t step, double progress) {
  const double low = schedule.min_lr_ratio;
  switch (schedule.kind) {
    case ScheduleKind::kConstant: return 1;
    case ScheduleKind::kCosine: {
      const double wave = std::cos(kPi * schedule.num_cycles * 2.0 * progress);
      return std::max(low, wave * (1 - low) / 2 + (1 + low) / 2);
    }
    case ScheduleKind::kLinear: return low + (1 - low) * (1 - progress);
    case ScheduleKind::kInverseSquareRoot: {
      const int64_t warmup = std::max<int64_t>(1, schedule.warmup_steps);
      const int64_t at = std::max<int64_t>(1, std::min(step, std::max(schedule.total_steps, warmup)));
      return std::max(low, std::sqrt(static_cast<double>(warmup)) / std::sqrt(static_cast<double>(at)));
    }
    case ScheduleKind::kWsd: {
      const int64_t over = step - (schedule.total_steps - schedule.wsd_decay_steps);
      const double done =
          static_cast<double>(std::max<int64_t>(0, over)) / static_cast<double>(schedule.wsd_decay_steps);
      return low + (1 - low) * left_of_decay(schedule.wsd_decay, std::min(1.0, done));
    }
  }
  return 1;
}

}  // namespace

ScheduleKind parse_schedule(const std::string& name) {
  return parse(kKinds, "learning-rate schedule", name);
}

WsdDecay parse_wsd_decay(const std::string& name) {
  return parse(kDecays, "decay of WSD", name);
}

void validate(const Schedule& schedule) {
  const auto refuse_unless = [](bool good, const auto&... message) {
    require(good, ErrorCode::kInvalidArgument, "[optim] ", message...);
  };
  refuse_unless(is_share(schedule.min_lr_ratio),
                "the final learning rate: expected a share of the peak from 0 to 1, got ",
                schedule.min_lr_ratio);
  refuse_unless(is_share(schedule.init_lr_ratio),
                "the learning rate that warm-up starts from: expected a share of the peak from 0 to 1, got ",
                schedule.init_lr_ratio);
  // Infinitely many would be no number.
  refuse_unless(schedule.num_cycles >= 0 && schedule.num_cycles <= kMostCycles,
                "waves of the cosine: expected a number from 0 to ", kMostCycles, ", got ",
                schedule.num_cycles);
  refuse_unless(schedule.first_step == 0 || schedule.first_step == 1,
                "the number of the first step: expected 0 or 1, got ", schedule.first_step);
  refuse_unless(schedule.warmup_steps >= 0, "steps of the warm-up: expected at least 0, got ",
                schedule.warmup_steps);
  if (schedule.kind == ScheduleKind::kConstant) return;
  const auto* kind = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const auto& named) { return named.second == schedule.kind; });
  refuse_unless(schedule.total_steps > 0, "the ", kind->first,
                " schedule needs the total number of steps but got ", schedule.total_steps);
  if (schedule.kind != ScheduleKind::kWsd) return;
  const int64_t after = schedule.total_steps - schedule.warmup_steps;
  refuse_unless(schedule.wsd_decay_steps >= 1 && schedule.wsd_decay_steps <= after,
                "steps in which WSD decays: expected 1 to the ", after, " that follow the warm-up, got ",
                schedule.wsd_decay_steps);
}

double learning_rate(const Schedule& schedule, double lr, int64_t step) {
  validate(schedule);
  step += schedule.first_step;
  const auto warmup = static_cast<double>(schedule.warmup_steps);
  if (step < schedule.warmup_steps) {
    const double start = lr * schedule.init_lr_ratio;
    return start + (lr - start) * static_cast<double>(step) / warmup;
  }
  const int64_t length = std::max<int64_t>(1, schedule.total_steps - schedule.warmup_steps);
  // verl's cosine would rise again past the end.
  const double progress =
      std::min(1.0, static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(length));
  return lr * share_of_peak(schedule, step, progress);
}

}  // namespace troupe
