// How a tile of gemm.cc goes over its steps of k and asks for memory on the way. Included where TROUPE_STEPS
// is the instruction set to compile for, beyond that of the file: what is compiled for more inlines what is
// compiled for less, not the other way round.
#pragma once

#include "kernels/cpu/gemm_kernels.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

inline void ask_for(const char*& line) {
  __builtin_prefetch(line, 0, 2);
  line += kLineBytes;
}

// Lines are asked for evenly, since a burst would hold up what the tile itself reads. First steps with
// `at_once` lines each, or, where it is 0, `every` steps behind a line.
struct AheadPlan {
  AheadPlan(const Ahead& ahead, int64_t steps) {
    if (ahead.lines > steps) {
      at_once = ahead.lines > 2 * steps ? kMost : 2;
      with_lines = ahead.lines / at_once < steps ? ahead.lines / at_once : steps;
    } else if (ahead.lines > 0) {
      lines = ahead.lines;
      every = steps / lines;
    }
  }

  static constexpr int64_t kMost = 3;
  int64_t at_once = 0, with_lines = 0;
  int64_t lines = 0, every = 0;
};

// `step` computes the next step of k. Each way to ask has a loop of its own: no step tests which it is.
template <typename Step>
TROUPE_STEPS __attribute__((always_inline)) inline void over_steps(int64_t steps, const Ahead& ahead,
                                                                   const Step& step) {
  const AheadPlan plan(ahead, steps);
  const char* line = ahead.from;
  if (plan.at_once == AheadPlan::kMost) {
    for (int64_t i = 0; i < plan.with_lines; ++i) {
      ask_for(line);
      ask_for(line);
      ask_for(line);
      step();
    }
  } else {
    for (int64_t i = 0; i < plan.with_lines; ++i) {
      ask_for(line);
      ask_for(line);
      step();
    }
  }
  for (int64_t i = 0; i < plan.lines; ++i) {
    ask_for(line);
    for (int64_t j = 0; j < plan.every; ++j) step();
  }
  for (int64_t i = plan.with_lines + plan.lines * plan.every; i < steps; ++i) step();
}

}  // namespace

}  // namespace troupe::kernels::TROUPE_ISA
