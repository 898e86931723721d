// A grid of CUDA threads on one thread of the host: what kernels ask of each other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

// A block's threads are coroutines that run one at a time, each until it waits for others: at a barrier of
// the block or of its warp. Blocks run one after the other. Which thread is next changes from launch to
// launch (ascending, descending, shuffled), and every such order is one that a GPU may take: a kernel that
// lacks a barrier gives other numbers in one of them.
namespace troupe::test::cuda_on_host {

constexpr unsigned kWarpSize = 32;

struct Extent {
  unsigned x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

struct Grid {
  Extent blocks, threads;
};

// Where the running thread is. Kernels read it all the time, as they do CUDA's own variables.
struct Position {
  Extent thread, block;
  Grid grid;
};
extern Position running;

// body() as every thread of every block. Launches of several threads of the host come one after the other.
// Throws std::logic_error when threads wait for others that never come; `kernel` is its name there.
void run_grid(const Grid& grid, const std::string& kernel, const std::function<void()>& body);

// ---- by a running thread ----

// Of all threads of the block that have not returned.
void wait_for_block();
// Of all lanes of the warp that have not returned.
void wait_for_warp();

unsigned lane();
// The word that each lane of the running thread's warp gives, until its next call but one.
// All lanes must take part: one that has returned leaves the others waiting.
const uint64_t* exchange(uint64_t own);

}  // namespace troupe::test::cuda_on_host
