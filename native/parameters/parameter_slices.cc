// What of parameters lies in the slice of a flat buffer that a rank holds.
#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "base/simulated.h"
#include "parameters/parameter_store.h"

namespace troupe {

template <typename Predicate>
std::vector<SliceRun> ParameterStore::runs_of(size_t group, Predicate&& predicate) const {
  const int64_t own = groups_[group].param.tensor().numel(), own_begin = slice(group).index * own;
  std::vector<SliceRun> runs;
  for (const Parameter& parameter : parameters_) {
    if (parameter.group != group) continue;
    parameter.placement.for_each_run([&](int64_t local, int64_t, int64_t count, const Piece& piece) {
      if (!predicate(piece)) return;
      const int64_t from = std::max(parameter.start + local, own_begin);
      const int64_t to = std::min(parameter.start + local + count, own_begin + own);
      if (from < to) runs.push_back({from - own_begin, to - from, piece.copies});
    });
  }
  return runs;
}

std::vector<SliceRun> ParameterStore::summed(size_t group) const {
  return runs_of(group, [](const Piece& piece) { return piece.summed; });
}

std::vector<SliceRun> ParameterStore::counted(size_t group) const {
  std::vector<SliceRun> runs;
  int64_t begin = 0;
  for (const SliceRun& other : runs_of(group, [](const Piece& piece) { return piece.copy > 0; })) {
    if (begin < other.begin) runs.push_back({begin, other.begin - begin});
    begin = other.begin + other.count;
  }
  const int64_t end = groups_[group].param.tensor().numel();
  if (begin < end) runs.push_back({begin, end - begin});
  return runs;
}

int64_t ParameterStore::left_out_before(TensorKind kind, const Parameter& parameter) const {
  if (!muon_ || kind != TensorKind::kExpAvgSq) return 0;
  require(parameter.matrices.empty(), ErrorCode::kInvalidArgument,
          "[model] Muon keeps no second moments of the weight of a linear layer, got those of ",
          parameter.info.name);
  const int64_t own = groups_[parameter.group].param.tensor().numel();
  const int64_t first = parameter.start - slice(parameter.group).index * own;
  int64_t held = 0;
  for (const SliceRun& run : elements(parameter.group)) {
    if (first < run.begin + run.count) return run.begin - held;
    held += run.count;
  }
  return 0;  // none of it is here
}

RowRange ParameterStore::owned_rows(TensorKind kind, const Parameter& parameter, int64_t row,
                                    int64_t rows) const {
  if (!groups_[parameter.group].here) return {row, row};
  owned(kind, parameter.group);  // that there is one
  const int64_t own = groups_[parameter.group].param.tensor().numel();
  const int64_t row_size = parameter.info.size() / parameter.info.shape[0];
  const int64_t from =
      slice(parameter.group).index * own - parameter.start;  // of what is held, in what is placed here
  const int64_t first = std::max<int64_t>(0, from) / row_size;
  const int64_t last = (from + own + row_size - 1) / row_size;
  const Placement& placement = parameter.placement;
  if (placement.dimension == 1) {  // its rows are whole ones, less wide
    const int64_t begin = std::max(row, first);
    return {begin, std::max(begin, std::min(row + rows, last))};
  }
  RowRange range{row + rows, row};
  for (const Piece& piece : placement.pieces) {
    const int64_t begin = std::max(row, piece.whole + std::max<int64_t>(0, first - piece.local));
    const int64_t end = std::min(row + rows, piece.whole + std::min(piece.count, last - piece.local));
    if (begin >= end) continue;
    range = {std::min(range.begin, begin), std::max(range.end, end)};
  }
  return range.begin < range.end ? range : RowRange{row, row};
}

void ParameterStore::assign(TensorKind kind, const Parameter& parameter, int64_t row,
                            const at::Tensor& values, int64_t column) {
  if (!groups_[parameter.group].here) return;
  const at::Tensor& own = owned(kind, parameter.group);
  const int64_t size = groups_[parameter.group].param.tensor().numel();
  const int64_t own_begin = slice(parameter.group).index * size;
  const int64_t left_out = left_out_before(kind, parameter);
  const int64_t row_size = parameter.info.size() / parameter.info.shape[0];
  const at::Tensor source = values.contiguous().view({-1});
  if (simulated(own)) return;
  const auto put = [&](int64_t begin, int64_t done, int64_t count) {
    begin += parameter.start;
    const int64_t from = std::max(begin, own_begin);
    const int64_t to = std::min(begin + count, own_begin + size);
    if (from < to)
      own.narrow(0, from - own_begin - left_out, to - from)
          .copy_(source.narrow(0, done + from - begin, to - from));
  };
  const int64_t rows = values.size(0);
  const int64_t width = source.numel() / rows;
  const Placement& placement = parameter.placement;
  for (const Piece& piece : placement.pieces) {
    const bool by_rows = placement.dimension == 0;
    // What the piece has of the values: along its dimension, in the whole.
    const int64_t from = std::max(by_rows ? row : column, piece.whole);
    const int64_t to = std::min(by_rows ? row + rows : column + width, piece.whole + piece.count);
    if (from >= to) continue;
    const int64_t local = piece.local + from - piece.whole;
    if (!by_rows) {
      for (int64_t r = 0; r < rows; ++r) {
        put((row + r) * row_size + local, r * width + from - column, to - from);
      }
    } else if (width == row_size) {  // whole rows lie together
      put(local * row_size, (from - row) * width, (to - from) * width);
    } else {
      for (int64_t r = from; r < to; ++r) {
        put((local + r - from) * row_size + column, (r - row) * width, width);
      }
    }
  }
}

std::vector<SliceRun> ParameterStore::elements(size_t group) const {
  const int64_t own = groups_[group].param.tensor().numel(), own_begin = slice(group).index * own;
  std::vector<SliceRun> runs;
  int64_t begin = 0;
  const auto run_to = [&](int64_t end) {
    if (begin < end) runs.push_back({begin, end - begin});
  };
  for (const Parameter& parameter : parameters_) {
    if (parameter.group != group || parameter.matrices.empty()) continue;
    const int64_t first = parameter.start - own_begin;
    const int64_t last = first + parameter.info.size();
    if (last <= 0 || first >= own) continue;
    run_to(first);
    begin = last;
  }
  run_to(own);
  return runs;
}

at::Tensor ParameterStore::slice_of(TensorKind kind, size_t group) const {
  const at::Tensor& held = owned(kind, group);
  if (!muon_ || kind != TensorKind::kExpAvgSq) return held;
  const at::Tensor all = at::zeros({groups_[group].param.tensor().numel()}, held.options());
  int64_t at = 0;
  for (const SliceRun& run : elements(group)) {
    all.narrow(0, run.begin, run.count).copy_(held.narrow(0, at, run.count));
    at += run.count;
  }
  return all;
}

}  // namespace troupe
