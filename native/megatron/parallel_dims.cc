// The equation of a layout, and neighbours along its axes.
#include "megatron/parallel_dims.h"

#include <array>
#include <sstream>

#include "base/error.h"

namespace troupe {

namespace {

constexpr std::array<const char*, 5> kNames = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};

std::array<int64_t, 5> factors(const ParallelDims& dims) {
  return {dims.pp, dims.dp_replicate, dims.dp_shard, dims.cp, dims.tp};
}

// "pp 2 x dp_replicate 1 x ...".
std::string equation(const ParallelDims& dims) {
  std::ostringstream text;
  const auto values = factors(dims);
  for (size_t i = 0; i < values.size(); ++i) text << (i > 0 ? " x " : "") << kNames[i] << " " << values[i];
  return text.str();
}

}  // namespace

std::string name_of(Axis axis) {
  switch (axis) {
    case Axis::kTp: return "tp";
    case Axis::kCp: return "cp";
    case Axis::kDp: return "dp";
    case Axis::kPp: return "pp";
    case Axis::kDpCp: return "dp_cp";
    case Axis::kEp: return "ep";
    case Axis::kExpertDp: return "expert_dp";
  }
  fail(ErrorCode::kInternal, "[parallel] an axis without a name");
}

ParallelDims ParallelDims::resolved(int64_t world) const {
  require(world >= 1, ErrorCode::kInvalidArgument, "[parallel] expected at least one rank, got ", world);
  ParallelDims dims = *this;
  std::array<int64_t*, 5> fields = {&dims.pp, &dims.dp_replicate, &dims.dp_shard, &dims.cp, &dims.tp};
  int64_t known = 1;
  int64_t* rest = nullptr;
  for (size_t i = 0; i < fields.size(); ++i) {
    const int64_t value = *fields[i];
    require(value >= 1 || value == -1, ErrorCode::kInvalidArgument, "[parallel] expected ", kNames[i],
            " to be a number of ranks, at least 1, or -1 for the rest, got ", value);
    if (value == -1) {
      require(rest == nullptr, ErrorCode::kInvalidArgument, "[parallel] expected at most one -1 in ",
              equation(*this), ": only one axis can take the rest");
      rest = fields[i];
      continue;
    }
    // Longer than the world already: no product that could overflow.
    known = known > world ? known : known * std::min(value, world + 1);
  }
  if (rest != nullptr) {
    require(known <= world && world % known == 0, ErrorCode::kInvalidArgument, "[parallel] expected ",
            equation(*this), " to divide the world of ", world, world == 1 ? " rank" : " ranks",
            ": nothing is left for -1");
    *rest = world / known;
  }
  require(rest != nullptr || known == world, ErrorCode::kInvalidArgument, "[parallel] expected ",
          equation(*this), " to be the world of ", world, world == 1 ? " rank" : " ranks", ", got a product ",
          known > world ? "above it" : "of " + std::to_string(known));
  require(dims.ep >= 1, ErrorCode::kInvalidArgument,
          "[parallel] expected ep to be a number of ranks, at least 1, got ", dims.ep);
  require((dims.dp() * dims.cp) % dims.ep == 0, ErrorCode::kInvalidArgument,
          "[parallel] expected ep to divide dp x cp, the ranks of a stage among which experts are spread, "
          "got ep ",
          dims.ep, " of ", dims.dp() * dims.cp, " in ", equation(dims), " on ", world,
          world == 1 ? " rank" : " ranks");
  return dims;
}

// Ranks first, first + step, ... of `count`.
struct ParallelDims::Stride {
  int64_t count, step;
};

ParallelDims::Stride ParallelDims::stride(Axis axis) const {
  switch (axis) {
    case Axis::kTp: return {tp, 1};
    case Axis::kCp: return {cp, tp};
    case Axis::kDp: return {dp(), cp * tp};
    case Axis::kPp: return {pp, dp() * cp * tp};
    case Axis::kDpCp: return {dp() * cp, tp};
    case Axis::kEp: return {ep, tp};
    case Axis::kExpertDp: return {dp() * cp / ep, ep * tp};
  }
  fail(ErrorCode::kInternal, "[parallel] an axis without ranks");
}

int64_t ParallelDims::size(Axis axis) const {
  return stride(axis).count;
}

int64_t ParallelDims::rank_on(Axis axis, int64_t rank) const {
  const Stride own = stride(axis);
  return rank / own.step % own.count;
}

std::vector<int64_t> ParallelDims::peers(Axis axis, int64_t rank) const {
  const Stride own = stride(axis);
  const int64_t first = rank - rank_on(axis, rank) * own.step;
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < own.count; ++i) ranks.push_back(first + i * own.step);
  return ranks;
}

}  // namespace troupe
