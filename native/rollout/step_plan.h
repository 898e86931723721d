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

// What may follow the tokens of a sequence.
struct Guess {
  int64_t match = 0;  // so many of its last tokens stand before them elsewhere; 1 where nothing was looked up
  std::vector<int32_t> tokens;
};

// Positions [sequence->computed, + count) of one sequence, the last of them those of a draft: the first
// tokens of the guess. Its copies are sequences with the same tokens, which sample from the logits of its
// last row and get its last page and its state.
struct PlannedRun {
  Sequence* sequence;
  int64_t count;
  std::vector<Sequence*> copies{};
  std::vector<PlannedSnapshot> snapshots{};  // by count
  Guess guess{};
  int64_t drafted = 0;
  // Of a run with a draft, where layers keep states: the slots of that behind the known positions and of
  // those behind each token of the draft, the last one the sequence's own; and which of them the sequence
  // has.
  std::vector<int64_t> states{};
  size_t state = 0;

  // Positions of tokens that it has.
  int64_t known() const { return count - drafted; }
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
