// The cut of a micro-batch over ranks.
#include "batch/row_parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace troupe {

namespace {

// What belongs to the rows `own` (of the whole, ascending or not): predictions in the order of the whole's.
void take_rows(const PackedTokens& whole, const std::vector<int64_t>& own, PackedTokens& part) {
  std::vector<int64_t> place(static_cast<size_t>(whole.tokens.size(0)), -1);
  for (size_t row = 0; row < own.size(); ++row)
    place[static_cast<size_t>(own[row])] = static_cast<int64_t>(row);
  std::vector<int64_t> predictions, rows;
  const int64_t* predict_rows = whole.predict_rows.const_data_ptr<int64_t>();
  part.response_offsets.push_back(0);
  for (size_t s = 0; s + 1 < whole.response_offsets.size(); ++s) {
    for (int64_t n = whole.response_offsets[s]; n < whole.response_offsets[s + 1]; ++n) {
      const int64_t row = place[static_cast<size_t>(predict_rows[n])];
      if (row < 0) continue;
      predictions.push_back(n);
      rows.push_back(row);
    }
    part.response_offsets.push_back(static_cast<int64_t>(predictions.size()));
  }
  part.rows = at::tensor(own, at::kLong);
  part.whole_rows = whole.tokens.size(0);
  part.sources = whole.sources;
  part.images = whole.images;
  if (whole.rotary_positions.defined())
    part.rotary_positions = whole.rotary_positions.index_select(1, part.rows);
  if (whole.routed_experts.defined()) part.routed_experts = whole.routed_experts.index_select(0, part.rows);
  part.predictions = at::tensor(predictions, at::kLong);
  part.predict_rows = at::tensor(rows, at::kLong);
  part.targets = whole.targets.index_select(0, part.predictions);
  part.response_index = whole.response_index.index_select(0, part.predictions);
}

// By part: runs of rows in order.
std::vector<std::vector<ops::QueryRun>> balanced_runs(const ops::Segments& segments, int64_t count) {
  const auto parts = static_cast<size_t>(count);
  std::vector<std::vector<ops::QueryRun>> runs(parts);
  std::vector<int64_t> rows(parts, 0);
  for (size_t s = 0; s < segments.size(); ++s) {
    const int64_t size = segments[s].size();
    std::vector<int64_t> chunks(2 * parts, size / (2 * count));
    for (int64_t extra = size % (2 * count); extra > 0; --extra) {
      const auto fewest = static_cast<size_t>(std::min_element(rows.begin(), rows.end()) - rows.begin());
      const bool first = chunks[fewest] == size / (2 * count);
      ++chunks[first ? fewest : 2 * parts - 1 - fewest];
      ++rows[fewest];
    }
    int64_t begin = segments[s].begin;
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      const int64_t end = begin + chunks[chunk];
      std::vector<ops::QueryRun>& own = runs[std::min(chunk, 2 * parts - 1 - chunk)];
      const bool adjacent =
          !own.empty() && own.back().segment == static_cast<int64_t>(s) && own.back().end == begin;
      if (adjacent) {
        own.back().end = end;
      } else if (begin < end) {
        own.push_back({static_cast<int64_t>(s), begin, end});
      }
      begin = end;
    }
  }
  return runs;
}

}  // namespace

PackedTokens consecutive_rows(const PackedTokens& whole, int64_t index, int64_t count) {
  const int64_t rows = whole.tokens.size(0) / count, first = index * rows;
  PackedTokens part;
  part.tokens = whole.tokens.narrow(0, first, rows);
  part.positions = whole.positions.narrow(0, first, rows);
  part.segments = whole.segments;
  part.sequences = whole.sequences.narrow(0, first, rows);
  part.real_rows = std::clamp<int64_t>(whole.real_rows - first, 0, rows);
  std::vector<int64_t> own(static_cast<size_t>(rows));
  std::iota(own.begin(), own.end(), first);
  take_rows(whole, own, part);
  return part;
}

PackedTokens balanced_rows(const PackedTokens& whole, int64_t index, int64_t count) {
  const int64_t all = whole.tokens.size(0), rows = all / count;
  const std::vector<std::vector<ops::QueryRun>> runs = balanced_runs(whole.segments, count);
  PackedTokens part;
  part.places = at::empty({all}, at::kLong);
  int64_t* places = part.places.data_ptr<int64_t>();
  std::vector<int64_t> own;
  int64_t tail = whole.real_rows;
  for (int64_t p = 0; p < count; ++p) {
    int64_t row = 0;
    const auto put = [&](int64_t whole_row) {
      places[whole_row] = p * rows + row++;
      if (p == index) own.push_back(whole_row);
    };
    for (const ops::QueryRun& run : runs[static_cast<size_t>(p)]) {
      for (int64_t r = run.begin; r < run.end; ++r) put(r);
    }
    if (p == index) part.real_rows = row;
    while (row < rows) put(tail++);
  }
  const at::Tensor taken = at::tensor(own, at::kLong);
  part.tokens = whole.tokens.index_select(0, taken);
  part.positions = whole.positions.index_select(0, taken);
  part.sequences = whole.sequences.index_select(0, taken);
  part.segments = whole.segments;
  part.segments.share = runs[static_cast<size_t>(index)];
  take_rows(whole, own, part);
  return part;
}

}  // namespace troupe
