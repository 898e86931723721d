#include "megatron/parallel_dims.h"

#include <limits>
#include <set>

#include "check.h"

// Layouts of ranks over axes.

using namespace troupe;

namespace {

using Ranks = std::vector<int64_t>;

const std::vector<Axis> kAxes = {Axis::kTp,   Axis::kCp, Axis::kDp,      Axis::kPp,
                                 Axis::kDpCp, Axis::kEp, Axis::kExpertDp};

ParallelDims dims(int64_t pp, int64_t dp_replicate, int64_t dp_shard, int64_t cp, int64_t tp,
                  int64_t ep = 1) {
  return {.dp_replicate = dp_replicate, .dp_shard = dp_shard, .cp = cp, .tp = tp, .pp = pp, .ep = ep};
}

}  // namespace

TEST(tp_is_fastest_then_cp_dp_and_pp) {
  const ParallelDims layout = dims(2, 1, 2, 2, 2, 2).resolved(16);
  CHECK((layout.peers(Axis::kTp, 6) == Ranks{6, 7}));
  CHECK((layout.peers(Axis::kCp, 6) == Ranks{4, 6}));
  CHECK((layout.peers(Axis::kDp, 6) == Ranks{2, 6}));
  CHECK((layout.peers(Axis::kPp, 6) == Ranks{6, 14}));
  CHECK((layout.peers(Axis::kDpCp, 14) == Ranks{8, 10, 12, 14}));
  CHECK((layout.peers(Axis::kEp, 14) == Ranks{12, 14}));
  CHECK((layout.peers(Axis::kExpertDp, 14) == Ranks{10, 14}));
  CHECK(layout.rank_on(Axis::kTp, 6) == 0 && layout.rank_on(Axis::kCp, 6) == 1);
  CHECK(layout.rank_on(Axis::kDp, 6) == 1 && layout.rank_on(Axis::kPp, 6) == 0);
}

TEST(ranks_of_one_shard_group_are_neighbours_within_dp) {
  // Replicas of two shards each: dp ranks 0, 1 and 2, 3.
  CHECK((dims(1, 2, 2, 1, 2).resolved(8).peers(Axis::kDp, 5) == Ranks{1, 3, 5, 7}));
}

TEST(every_axis_parts_the_world) {
  for (const ParallelDims& one : {dims(2, 1, 2, 2, 2, 4), dims(3, 2, 1, 1, 2, 2), dims(1, 1, 1, 1, 1),
                                  dims(1, 1, 6, 1, 1, 3), dims(4, 1, 1, 3, 1)}) {
    const ParallelDims layout = one.resolved(one.world());
    for (const Axis axis : kAxes) {
      std::set<Ranks> groups;
      std::set<int64_t> members;
      for (int64_t rank = 0; rank < layout.world(); ++rank) {
        const Ranks peers = layout.peers(axis, rank);
        CHECK(static_cast<int64_t>(peers.size()) == layout.size(axis));
        CHECK(peers[static_cast<size_t>(layout.rank_on(axis, rank))] == rank);
        if (groups.insert(peers).second) members.insert(peers.begin(), peers.end());
      }
      CHECK(static_cast<int64_t>(groups.size()) * layout.size(axis) == layout.world());
      CHECK(static_cast<int64_t>(members.size()) == layout.world());
    }
  }
}

TEST(minus_one_is_the_rest) {
  CHECK(dims(2, 1, -1, 1, 2).resolved(12).dp_shard == 3);
  CHECK(dims(-1, 1, 1, 1, 2).resolved(8).pp == 4);
  CHECK(dims(1, 1, 2, 1, -1).resolved(2).tp == 1);
  CHECK(ParallelDims{}.resolved(5) == dims(1, 1, 5, 1, 1));
}

TEST(what_does_not_come_out_is_refused_with_the_whole_equation) {
  CHECK_THROWS(dims(2, 1, 3, 1, 2).resolved(8),
               "expected pp 2 x dp_replicate 1 x dp_shard 3 x cp 1 x tp 2 to be the world of 8 ranks, got a "
               "product above it");
  CHECK_THROWS(dims(1, 1, 1, 1, 2).resolved(8), "got a product of 2");
  CHECK_THROWS(dims(1, 1, -1, 1, 3).resolved(8),
               "expected pp 1 x dp_replicate 1 x dp_shard -1 x cp 1 x tp 3 to divide the world of 8 ranks");
  CHECK_THROWS(dims(4, 1, -1, 1, 4).resolved(8), "nothing is left for -1");
  CHECK_THROWS(dims(-1, 1, -1, 1, 2).resolved(8), "at most one -1");
  CHECK_THROWS(dims(1, 1, 1, 0, 1).resolved(1), "expected cp to be a number of ranks, at least 1");
  CHECK_THROWS(dims(1, 1, 1, 1, -2).resolved(1), "or -1 for the rest, got -2");
  CHECK_THROWS(dims(1, 1, 2, 1, 2, 4).resolved(4), "ep 4 of 2");
  CHECK_THROWS(dims(1, 1, 2, 1, 1, 0).resolved(2), "expected ep to be");
  CHECK_THROWS(dims(1, 1, 1, 1, 1).resolved(0), "at least one rank");
  const int64_t huge = std::numeric_limits<int64_t>::max();
  CHECK_THROWS(dims(huge, huge, huge, huge, huge).resolved(8), "a product above it");
}

TEST_MAIN()
