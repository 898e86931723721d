// Cutting a decoder into parts of consecutive layers.
#include "model/stage_range.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace troupe {

namespace {

// `total` in `counts.size()` shares, larger ones in the middle.
void share(int64_t total, std::vector<int64_t>& counts) {
  const auto parts = static_cast<int64_t>(counts.size());
  std::fill(counts.begin(), counts.end(), total / parts);
  int64_t left = total % parts;
  for (int64_t i = 1; i + 1 < parts && left > 0; ++i, --left) ++counts[static_cast<size_t>(i)];
  for (size_t i = 0; left > 0; ++i, --left) ++counts[i];
}

}  // namespace

std::vector<StageRange> pipeline_parts(int64_t num_layers, const PipelineOptions& options) {
  const int64_t parts = options.stages * options.chunks;
  require(options.stages >= 1 && options.chunks >= 1, ErrorCode::kInvalidArgument,
          "[pipeline] expected at least 1 stage (pp) and 1 chunk (vpp), got ", options.stages, " and ",
          options.chunks);
  require(options.chunks == 1 || options.stages > 1, ErrorCode::kInvalidArgument, "[pipeline] vpp(",
          options.chunks, ") needs at least 2 stages, got pp(", options.stages, ")");
  require(options.first_layers >= 0 && options.last_layers >= 0, ErrorCode::kInvalidArgument,
          "[pipeline] expected numbers of layers >= 0 for the first and last part, got ",
          options.first_layers, " and ", options.last_layers);
  const bool given = options.first_layers > 0 || options.last_layers > 0;
  require(!given || !(options.count_embedding || options.count_head), ErrorCode::kInvalidArgument,
          "[pipeline] the layers of the first or last part are given: embeddings and head cannot be counted "
          "as layers, too");
  require(!given || parts > 1, ErrorCode::kInvalidArgument,
          "[pipeline] the layers of the first or last part are given, but there is one part only");
  std::vector<int64_t> counts(static_cast<size_t>(parts), num_layers);
  if (parts > 1) {
    const int64_t extra = (options.count_embedding ? 1 : 0) + (options.count_head ? 1 : 0);
    const bool first = options.first_layers > 0, last = options.last_layers > 0;
    std::vector<int64_t> shared(static_cast<size_t>(parts - (first ? 1 : 0) - (last ? 1 : 0)));
    const int64_t left = num_layers + extra - options.first_layers - options.last_layers;
    require(left >= static_cast<int64_t>(shared.size()) && (!shared.empty() || left == 0),
            ErrorCode::kInvalidArgument, "[pipeline] ", num_layers, " layers do not make pp(", options.stages,
            ") x vpp(", options.chunks, ") = ", parts, " parts with ",
            given ? "the given numbers of layers at the ends" : "a layer in each", " (first ",
            options.first_layers, ", last ", options.last_layers, ")");
    if (!shared.empty()) share(left, shared);
    std::copy(shared.begin(), shared.end(), counts.begin() + (first ? 1 : 0));
    if (first) counts.front() = options.first_layers;
    if (last) counts.back() = options.last_layers;
    if (options.count_embedding) --counts.front();
    if (options.count_head) --counts.back();
  }
  std::vector<StageRange> ranges;
  int64_t at = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    require(counts[i] > 0, ErrorCode::kInvalidArgument, "[pipeline] ", num_layers, " layers do not make pp(",
            options.stages, ") x vpp(", options.chunks, ") = ", parts, " parts: part ", i,
            " would have none");
    ranges.push_back({at, at + counts[i], i == 0, i + 1 == counts.size()});
    at += counts[i];
  }
  return ranges;
}

}  // namespace troupe
