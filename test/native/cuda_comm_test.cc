#include <ATen/ATen.h>

#include "check.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "kernels/device_ops.h"
#include "ranks.h"

// Collectives on memory of a GPU: over NCCL with one rank, and over Gloo with two ranks that share the GPU.
// Without a GPU, or in a build without CUDA, the program says so and ctest counts it as skipped.
namespace {

using namespace troupe;

at::Tensor on_gpu(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes, at::kFloat).to(type).to(at::kCUDA);
}

TEST(nccl_moves_data_of_the_device_and_of_the_host) {
  const auto rendezvous = Rendezvous::open();
  const auto comm = make_nccl_communicator(
      {"nccl", 0, 1, "127.0.0.1", rendezvous->port(), "token", std::chrono::milliseconds(20'000)});
  const CollectiveLabel label{"test", "nccl"};
  for (const at::Tensor& input :
       {on_gpu({1000}, at::kFloat), on_gpu({1000}, at::kBFloat16), at::randn({10})}) {
    const at::Tensor output = at::zeros_like(input);
    comm->all_gather(output, input, label);
    CHECK(output.equal(input));
    output.zero_();
    comm->all_to_all(output, input, label);
    CHECK(output.equal(input));
    const at::Tensor same = input.clone();
    comm->broadcast(same, 0, label);
    CHECK(same.equal(input));
  }
  comm->barrier(label);
  comm->abort("the test ends it");
  CHECK_THROWS(comm->barrier(label), "the test ends it");
}

// Rank r has r + 1, 2 (r + 1), ...
at::Tensor multiples(int64_t count, int64_t rank) {
  return at::arange(1, count + 1, at::kFloat).mul_(static_cast<double>(rank + 1)).to(at::kCUDA);
}

TEST(gloo_moves_data_of_ranks_that_share_a_gpu) {
  constexpr int64_t kCount = 1000;
  const CollectiveLabel label{"test", "gloo"};
  test::check_all(2, [&](Communicator& comm) {
    const at::Tensor own = multiples(kCount, comm.rank());
    const at::Tensor both = at::cat({multiples(kCount, 0), multiples(kCount, 1)});
    const at::Tensor all = at::zeros_like(both);
    comm.all_gather(all, own, label);
    CHECK(all.equal(both));
    Pending pending = comm.all_gather_async(all.zero_(), own, label);
    pending.wait();
    CHECK(all.equal(both));
    const at::Tensor parts = at::zeros_like(both);
    comm.all_to_all(parts, both, label);
    const at::Tensor part = both.narrow(0, comm.rank() * kCount, kCount);
    CHECK(parts.equal(at::cat({part, part})));
    const at::Tensor sum = at::zeros_like(own);
    comm.reduce_scatter(sum, both, label);
    CHECK(sum.equal(part * 2));
    const at::Tensor reduced = own.clone();
    comm.all_reduce(reduced, ReduceOp::kSum, label);
    CHECK(reduced.equal(multiples(kCount, 2)));
    const at::Tensor sent = own.clone();
    comm.broadcast(sent, 1, label);
    CHECK(sent.equal(multiples(kCount, 1)));
    const at::Tensor taken = at::zeros_like(own);
    if (comm.rank() == 0) comm.send(own, 1, label);
    if (comm.rank() == 1) {
      comm.recv(taken, 0, label);
      CHECK(taken.equal(multiples(kCount, 0)));
    }
    comm.barrier(label);
  });
}

}  // namespace

int main() {
  if (kernels::device_ops() == nullptr || !at::hasCUDA()) {
    std::printf("skipped: %s\n0 passed, 0 failed\n",
                kernels::device_ops() == nullptr ? "a build without CUDA" : "no GPU");
    return 77;  // SKIP_RETURN_CODE in CMakeLists.txt
  }
  return test::run_all();
}
