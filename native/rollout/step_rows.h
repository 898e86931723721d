// The rows of a step as attention sees them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "rollout/kv_cache.h"

namespace troupe {

// Consecutive positions of one sequence among the rows of a step.
struct RowRun {
  int64_t row = 0;       // of the first
  int64_t position = 0;  // of the first
  int64_t count = 0;
  const std::vector<int32_t>* pages = nullptr;  // of the sequence, at least as many as its positions need
};

// The rows of a step, for all of its layers.
class StepRows {
 public:
  // apart: no row sees the key of another row of the step.
  StepRows(std::vector<RowRun> runs, const KvCache& cache, bool apart);

  const std::vector<RowRun>& runs() const { return runs_; }
  // The parts of these that have the rows, which ascend.
  std::vector<RowRun> parts_with(const std::vector<int64_t>& rows) const;
  // A step of these rows alone, whose keys are in the pages.
  StepRows only(const std::vector<int64_t>& rows, const KvCache& cache) const;
  int64_t size() const { return static_cast<int64_t>(slots_.size()); }
  const std::vector<KvSlot>& slots() const { return slots_; }
  bool apart() const { return apart_; }

  // On a GPU, else undefined: what PagedAttention takes, and page and slot of each row [rows] int64.
  at::Tensor pages, queries, row_pages, row_slots;

 private:
  std::vector<RowRun> runs_;
  std::vector<KvSlot> slots_;
  bool apart_;
};

}  // namespace troupe
