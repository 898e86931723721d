// Memory without numbers: how code that computes on a CPU runs on meta tensors, for simulations.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/counting_allocator.h"

namespace troupe {

// [Note: simulated memory] A meta tensor has a shape and an allocator, but no memory. On meta tensors the
// decoder, the head and the optimiser allocate what they do on a CPU (with AVX2, and AVX512_BF16, so with
// packed weights), and leave out the arithmetic: a function that would read or write elements returns where
// it has made its buffers. With CountAllocations around it, such a run says what the real one holds at most,
// whatever the size of the model.
inline bool simulated(const at::Tensor& x) {
  return x.is_meta();
}

// While it lives, meta tensors of this thread stand for a GPU's: weights are not packed, rows are not cut
// into tiles for threads, micro-batches are padded.
class SimulateGpu {
 public:
  explicit SimulateGpu(bool gpu) : outer_(std::exchange(flag(), gpu)) {}
  ~SimulateGpu() { flag() = outer_; }
  SimulateGpu(const SimulateGpu&) = delete;
  SimulateGpu& operator=(const SimulateGpu&) = delete;

  static bool active() { return flag(); }

 private:
  static bool& flag() {
    thread_local bool gpu = false;
    return gpu;
  }
  bool outer_;
};

// Whether what lies there is computed on threads of a CPU.
inline bool on_cpu_threads(const at::Device& device) {
  return device.is_cpu() || (device.is_meta() && !SimulateGpu::active());
}

// In place of `items` calls of body by LibTorch's threads: one, which stands for all that run at the same
// time. What it allocates must not outlive it.
template <typename Body>
void simulate_threads(int64_t items, Body&& body) {
  if (items <= 0) return;
  if (SimulateGpu::active()) return body();
  const auto one = std::make_shared<ByteCount>();
  {
    const CountAllocations scope(one);
    body();
  }
  if (const std::shared_ptr<ByteCount> all = CountAllocations::current()) {
    const int64_t bytes = one->peak() * std::min<int64_t>(items, at::get_num_threads());
    all->add(bytes);
    all->remove(bytes);
  }
}

}  // namespace troupe
