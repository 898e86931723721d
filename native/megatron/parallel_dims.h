// How many ranks share each axis of a model, and where a rank stands on them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

// The axes along which neighbours are found. kDpCp: all ranks that hold the same parameters, before any of
// them is sharded; kExpertDp: those that hold the same experts.
enum class Axis { kTp, kCp, kDp, kPp, kDpCp, kEp, kExpertDp };
std::string name_of(Axis axis);

// Numbers of ranks along each axis, in a world of pp * dp_replicate * dp_shard * cp * tp:
//   rank = ((pp_rank * dp + dp_rank) * cp + cp_rank) * tp + tp_rank,  dp = dp_replicate * dp_shard,
// so that tensor-parallel ranks, which talk most, are neighbours and pipeline stages lie farthest apart; of
// dp the ranks of one shard group are neighbours. Experts are spread over ranks of dp and cp: `ep` neighbours
// of a stage's dp * cp hold all of them once, and each expert is cut over tp as every other matrix is.
struct ParallelDims {
  int64_t dp_replicate = 1;
  int64_t dp_shard = -1;
  int64_t cp = 1;
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t ep = 1;

  int64_t dp() const { return dp_replicate * dp_shard; }
  int64_t world() const { return pp * dp() * cp * tp; }
  bool operator==(const ParallelDims&) const = default;

  // With every number known: one of dp_replicate, dp_shard, cp, tp and pp may be -1, the rest of `world`
  // ranks. kInvalidArgument with the whole equation when it does not come out, and for an ep that does not
  // divide dp * cp.
  ParallelDims resolved(int64_t world) const;

  // Of a resolved layout: how many ranks share the axis with `rank`, its place among them, and who they are.
  int64_t size(Axis axis) const;
  int64_t rank_on(Axis axis, int64_t rank) const;
  std::vector<int64_t> peers(Axis axis, int64_t rank) const;

 private:
  struct Stride;
  Stride stride(Axis axis) const;
};

}  // namespace troupe
