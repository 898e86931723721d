// What a step computes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "rollout/sequence.h"

namespace troupe {

// The state behind the first `count` rows of a run also goes into this slot.
struct PlannedSnapshot {
  int64_t count, slot;
};

// Positions [sequence->computed, + count) of one sequence. Its copies are sequences with the same tokens,
// which sample from the logits of its last row and get its last page and its state.
struct PlannedRun {
  Sequence* sequence;
  int64_t count;
  std::vector<Sequence*> copies;
  std::vector<PlannedSnapshot> snapshots;  // by count
};

struct StepPlan {
  std::vector<PlannedRun> runs;
  int64_t rows = 0;
  // No row sees the key of another run's row.
  bool apart = true;
  // Slots of states, from and to, that are copied one after the other before all else.
  std::vector<std::pair<int64_t, int64_t>> state_copies;
};

}  // namespace troupe
