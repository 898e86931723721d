// Loops over LibTorch's threads, and the tiles of rows that a CPU computes in.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <omp.h>

#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>

#include "base/simulated.h"

namespace troupe {

// More threads than any processor has cores: what is asked for beyond them is a mistake that would end the
// process when OpenMP cannot start them.
constexpr int64_t kMaxThreads = 1024;

// Threads of LibTorch in this process; 0 leaves its choice. kInvalidArgument outside of [0, kMaxThreads].
void set_num_threads(int64_t count);

// Runs body(i) for i in [0, count) on LibTorch's threads, items handed out as threads become free,
// and rethrows the first exception.
//
// [Note: one thread per GEMM] at::parallel_for runs a single item inline, outside any OpenMP region,
// where the BLAS would spread that GEMM over all threads and round differently than it does for the
// same rows inside a region. Results must not depend on how many items there are, so a region is
// always opened: inside it the BLAS uses the calling thread alone.
template <typename Body>
void parallel_items(int64_t count, Body&& body) {
  const int threads = at::get_num_threads();
  if (threads <= 1) {
    at::AutoDispatchBelowADInplaceOrView guard;
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::exception_ptr first_error;
  std::mutex error_mutex;
#pragma omp parallel num_threads(threads)
  {
    at::AutoDispatchBelowADInplaceOrView guard;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; ++i) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(error_mutex);
        if (!first_error) first_error = std::current_exception();
      }
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

// The same where body works on tensors of `device`: on meta tensors see [Note: simulated memory].
template <typename Body>
void parallel_items(const at::Device& device, int64_t count, Body&& body) {
  if (device.is_meta()) return simulate_threads(count, [&] { body(int64_t{0}); });
  parallel_items(count, std::forward<Body>(body));
}

// Splits [0, count) into `num_ranges` contiguous ranges and runs body(range, begin, end) for those that
// are not empty: for sums whose order must be the same in every run.
template <typename Body>
void parallel_ranges(int64_t count, int64_t num_ranges, Body&& body) {
  parallel_items(num_ranges, [&](int64_t range) {
    const int64_t begin = count * range / num_ranges;
    const int64_t end = count * (range + 1) / num_ranges;
    if (begin < end) body(range, begin, end);
  });
}

template <typename Body>
void parallel_ranges(const at::Device& device, int64_t count, int64_t num_ranges, Body&& body) {
  if (device.is_meta()) {
    return simulate_threads(std::min(count, num_ranges), [&] { body(int64_t{0}, int64_t{0}, int64_t{1}); });
  }
  parallel_ranges(count, num_ranges, std::forward<Body>(body));
}

// Rows of the fixed-size tiles in which the decoder runs on a CPU. Every GEMM then has the same
// shape whatever the micro-batch holds, and a tile's element-wise work stays in the L2 cache.
constexpr int64_t kRowTile = 128;
constexpr int64_t kDecodeRowTile = 32;  // while decoding with a KV cache

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// body(begin, end) over tiles of `tile` rows (the last may be short); one call for everything on a GPU.
// packed: all products of body have packed operands (kernels/gemm.h). A tile that is alone then runs outside
// of any region, where its products spread over the threads by columns.
template <typename Body>
void for_each_row_tile(int64_t rows, int64_t tile, const at::Device& device, Body&& body,
                       bool packed = false) {
  if (device.is_meta() && on_cpu_threads(device)) {
    return simulate_threads((rows + tile - 1) / tile, [&] { body(int64_t{0}, std::min(rows, tile)); });
  }
  if (!device.is_cpu() || (packed && rows <= tile)) {
    at::AutoDispatchBelowADInplaceOrView guard;
    body(int64_t{0}, rows);
    return;
  }
  parallel_items((rows + tile - 1) / tile,
                 [&](int64_t i) { body(i * tile, std::min(rows, (i + 1) * tile)); });
}

}  // namespace troupe
