// What runs CUDA kernels on the host (cuda_on_host): that it finds what a GPU would trip over.
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "cuda_on_host/language.h"
#include "cuda_on_host/launch.h"

using namespace troupe::test;
using cuda_on_host::Grid;

namespace {

constexpr unsigned kThreads = 128;

void launch(const Grid& grid, const std::function<void()>& kernel) {
  cuda_on_host::launch("kernel", grid, kernel);
}

// Every thread writes its number, and reads its neighbour's.
void neighbours(bool barrier, std::vector<unsigned>& seen) {
  __shared__ unsigned numbers[kThreads];
  numbers[threadIdx.x] = blockIdx.x * 1000 + threadIdx.x;
  if (barrier) __syncthreads();
  seen[blockIdx.x * kThreads + threadIdx.x] = numbers[(threadIdx.x + 1) % kThreads];
  if (barrier) __syncthreads();
}

}  // namespace

TEST(a_missing_barrier_gives_other_numbers) {
  std::vector<unsigned> expected;
  for (unsigned block = 0; block < 3; ++block) {
    for (unsigned thread = 0; thread < kThreads; ++thread)
      expected.push_back(block * 1000 + (thread + 1) % kThreads);
  }
  int wrong = 0;
  for (int run = 0; run < 3; ++run) {  // in every order of the threads
    std::vector<unsigned> with(expected.size()), without(expected.size());
    launch({dim3(3), dim3(kThreads)}, [&] { neighbours(true, with); });
    CHECK(with == expected);
    launch({dim3(3), dim3(kThreads)}, [&] { neighbours(false, without); });
    wrong += without != expected ? 1 : 0;
  }
  CHECK(wrong == 3);
}

// Which is written a second time while other warps still read what was there.
void twice(bool barrier, std::vector<unsigned>& seen) {
  __shared__ unsigned word;
  for (unsigned round = 0; round < 2; ++round) {
    __syncwarp();
    if (barrier) __syncthreads();
    if (threadIdx.x == 40) word = round;
    __syncthreads();
    seen[threadIdx.x] += (round + 1) * word;
  }
}

TEST(a_warp_runs_ahead_of_others) {
  int wrong = 0;
  for (int run = 0; run < 3; ++run) {
    std::vector<unsigned> with(kThreads), without(kThreads);
    launch({dim3(1), dim3(kThreads)}, [&] { twice(true, with); });
    CHECK(with == std::vector<unsigned>(kThreads, 2));
    launch({dim3(1), dim3(kThreads)}, [&] { twice(false, without); });
    wrong += without != with ? 1 : 0;
  }
  CHECK(wrong > 0);
}

TEST(lanes_exchange_words_of_any_width) {
  std::vector<double> sums(2 * kThreads);
  std::vector<int> before(2 * kThreads);
  for (int run = 0; run < 3; ++run) {
    launch({dim3(2), dim3(8, kThreads / 8)}, [&] {
      const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x, all = blockIdx.x * kThreads + thread;
      double sum = thread;
      for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      sums[all] = sum;
      const int up = __shfl_up_sync(0xffffffffu, static_cast<int>(thread), 3);
      before[all] = up - __shfl_sync(0xffffffffu, static_cast<int>(thread), 2);
    });
    for (unsigned all = 0; all < 2 * kThreads; ++all) {
      const unsigned thread = all % kThreads, first = thread / 32 * 32;
      CHECK(sums[all] == 32 * first + 31 * 16);
      CHECK(before[all] ==
            static_cast<int>(thread < first + 3 ? thread : thread - 3) - static_cast<int>(first + 2));
    }
  }
}

TEST(threads_that_wait_for_others_in_vain_are_told) {
  const Grid one{dim3(1), dim3(64)};
  // A lane that is gone has nothing to give.
  CHECK_THROWS(launch(one,
                      [] {
                        if (threadIdx.x != 5) __shfl_xor_sync(0xffffffffu, 1, 1);
                      }),
               "kernel: 0 threads of a block wait for the block, 31 for their warp");
  // A warp that waits for its lanes, of which some wait for the block.
  CHECK_THROWS(launch(one, [] { threadIdx.x < 16 ? __syncwarp() : __syncthreads(); }),
               "kernel: 48 threads of a block wait for the block, 16 for their warp");
  // Threads that have returned are not waited for.
  int counted = 0;
  launch(one, [&] {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    __syncwarp();
    ++counted;
  });
  CHECK(counted == 40);
}

TEST(what_a_kernel_throws_ends_the_launch) {
  CHECK_THROWS(launch({dim3(2), dim3(64)},
                      [] {
                        __syncthreads();
                        if (threadIdx.x == 63) throw std::runtime_error("number 63");
                        __syncthreads();
                      }),
               "number 63");
  int ran = 0;
  launch({dim3(1), dim3(32)}, [&] { ++ran; });
  CHECK(ran == 32);
}

TEST(a_grid_that_no_gpu_takes_is_refused) {
  for (const Grid& grid : {Grid{dim3(0), dim3(32)}, Grid{dim3(1), dim3(1056)}, Grid{dim3(1, 65536), dim3(32)},
                           Grid{dim3(1, 1, 65536), dim3(32)}, Grid{dim3(1), dim3(1, 1, 128)}}) {
    bool ran = false;
    launch(grid, [&] { ran = true; });
    const cudaError_t error = cudaGetLastError();
    CHECK(!ran && error != cudaSuccess && std::string(error).find("invalid configuration") == 0);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
}

TEST_MAIN()
