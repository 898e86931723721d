#include "megatron/mesh.h"

#include <ATen/ATen.h>

#include "ranks.h"

// Communicators along the axes of a layout.

using namespace troupe;
using namespace troupe::test;

namespace {

std::shared_ptr<Communicator> borrowed(Communicator& comm) {
  return {&comm, [](Communicator*) {}};
}

// The sum of what the ranks on an axis hold.
int64_t sum_over(Communicator& comm, int64_t own) {
  const at::Tensor value = at::tensor({own}, at::kLong);
  comm.all_reduce(value, ReduceOp::kSum, {"test", "ranks"});
  return value.item<int64_t>();
}

}  // namespace

TEST(sums_along_every_axis_are_those_of_its_ranks) {
  const ParallelDims layout{.dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2, .pp = 2, .ep = 2};
  check_all(8, [&](Communicator& world) {
    const Mesh mesh(borrowed(world), layout);
    for (const Axis axis :
         {Axis::kPp, Axis::kTp, Axis::kExpertDp, Axis::kDp, Axis::kEp, Axis::kCp, Axis::kDpCp}) {
      int64_t expected = 0;
      for (const int64_t rank : mesh.dims().peers(axis, world.rank())) expected += 1 << rank;
      CHECK(sum_over(*mesh.on(axis), 1 << world.rank()) == expected);
      CHECK(mesh.on(axis)->rank() == mesh.dims().rank_on(axis, world.rank()));
    }
  });
}

TEST(two_meshes_of_one_world_do_not_meet) {
  check_all(4, [&](Communicator& world) {
    const Mesh first(borrowed(world), {.tp = 2});
    const Mesh second(borrowed(world), {.dp_shard = 1, .tp = 4});
    CHECK(sum_over(*first.tp(), 1) == 2);
    CHECK(sum_over(*second.tp(), 1) == 4);
    CHECK(sum_over(*first.dp(), 1) == 2);
  });
}

TEST(data_parallelism_alone_has_the_connections_of_the_world) {
  check_all(2, [&](Communicator& world) {
    const std::shared_ptr<Communicator> shared = borrowed(world);
    const Mesh mesh(shared, {});
    CHECK(mesh.dp() == shared && mesh.dp_cp() == shared && mesh.expert_dp() == shared);
    CHECK(mesh.tp()->size() == 1 && mesh.pp()->size() == 1 && mesh.cp()->size() == 1);
    CHECK(world.log().collectives() == 0);
  });
}

TEST(bytes_are_counted_along_their_axis) {
  check_all(4, [&](Communicator& world) {
    const Mesh mesh(borrowed(world), {.tp = 2});
    const int64_t before = mesh.bytes_sent();
    sum_over(*mesh.tp(), 1);
    sum_over(*mesh.dp_cp(), 1);
    sum_over(*mesh.world(), 1);
    CHECK(mesh.tp()->log().bytes_sent() == 8 && mesh.dp()->log().bytes_sent() == 8);
    CHECK(mesh.bytes_sent() - before == 8 + 8 + 3 * 8);
  });
}

TEST(an_abort_ends_every_axis) {
  check_all(2, [&](Communicator& world) {
    Mesh mesh(borrowed(world), {.tp = 2});
    mesh.abort("enough");
    CHECK_THROWS(sum_over(*mesh.tp(), 1), "enough");
    CHECK_THROWS(sum_over(*mesh.world(), 1), "enough");
  });
}

TEST(a_world_of_another_size_is_refused_before_anything_is_split) {
  check_all(2, [&](Communicator& world) {
    CHECK_THROWS(Mesh(borrowed(world), {.dp_shard = 1, .tp = 4}), "to be the world of 2 ranks");
    CHECK(sum_over(world, 1) == 2);
  });
}

TEST_MAIN()
