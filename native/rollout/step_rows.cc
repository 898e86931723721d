// Runs of rows, and where a GPU finds their pages.
#include "rollout/step_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/parallel.h"
#include "base/upload.h"

namespace troupe {

StepRows::StepRows(std::vector<RowRun> runs, const KvCache& cache, bool apart)
    : runs_(std::move(runs)), apart_(apart) {
  size_t most = 0;
  for (const RowRun& run : runs_) {
    most = std::max(most, static_cast<size_t>(KvCache::pages_for(run.position + run.count)));
    for (int64_t position = run.position; position < run.position + run.count; ++position) {
      slots_.push_back({(*run.pages)[static_cast<size_t>(position / kPagePositions)],
                        static_cast<int32_t>(position % kPagePositions)});
    }
  }
  if (on_cpu_threads(cache.device())) return;
  const at::Tensor addresses =
      at::zeros({static_cast<int64_t>(runs_.size()), static_cast<int64_t>(most)}, at::kLong);
  const at::Tensor sequence_and_length = at::empty({size(), 2}, at::kInt);
  const at::Tensor where = at::empty({2, size()}, at::kLong);
  int64_t* next = addresses.mutable_data_ptr<int64_t>();
  int32_t* query = sequence_and_length.mutable_data_ptr<int32_t>();
  int64_t* place = where.mutable_data_ptr<int64_t>();
  for (size_t sequence = 0; sequence < runs_.size(); ++sequence, next += most) {
    const RowRun& run = runs_[sequence];
    for (int64_t page = 0; page < KvCache::pages_for(run.position + run.count); ++page)
      next[page] = static_cast<int64_t>(
          reinterpret_cast<intptr_t>(cache.address((*run.pages)[static_cast<size_t>(page)])));
    for (int64_t i = 0; i < run.count; ++i, query += 2, ++place) {
      query[0] = static_cast<int32_t>(sequence);
      query[1] = static_cast<int32_t>(run.position + i + 1);
      const KvSlot slot = slots_[static_cast<size_t>(run.row + i)];
      place[0] = slot.page;
      place[size()] = slot.slot;
    }
  }
  pages = upload(addresses, cache.device());
  queries = upload(sequence_and_length, cache.device());
  const at::Tensor places = upload(where, cache.device());
  row_pages = places[0];
  row_slots = places[1];
}

std::vector<RowRun> StepRows::parts_with(const std::vector<int64_t>& rows) const {
  std::vector<RowRun> parts;
  auto run = runs_.begin();
  for (const int64_t row : rows) {
    while (row >= run->row + run->count) ++run;
    if (!parts.empty() && parts.back().pages == run->pages && parts.back().row + parts.back().count == row) {
      ++parts.back().count;
    } else {
      parts.push_back({row, run->position + row - run->row, 1, run->pages});
    }
  }
  return parts;
}

StepRows StepRows::only(const std::vector<int64_t>& rows, const KvCache& cache) const {
  std::vector<RowRun> parts = parts_with(rows);
  int64_t row = 0;
  for (RowRun& part : parts) {
    part.row = row;
    row += part.count;
  }
  return {std::move(parts), cache, /*apart=*/true};
}

}  // namespace troupe
