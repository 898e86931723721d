// Counts the bytes that LibTorch allocates, live and at most: what tests and simulations assert memory with.
#pragma once

#include <c10/core/DeviceType.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace troupe {

// Bytes that are held, and the most that were held at one time. Any thread may call.
class ByteCount {
 public:
  void add(int64_t bytes);
  void remove(int64_t bytes) { live_.fetch_sub(bytes); }
  int64_t live() const { return live_.load(); }
  int64_t peak() const { return peak_.load(); }
  // All that was ever added.
  int64_t total() const { return total_.load(); }
  // From now on: the most above what is held now is not remembered.
  void restart_peak() { peak_.store(live_.load()); }

 private:
  std::atomic<int64_t> live_{0}, peak_{0}, total_{0};
};

// While it lives, what its thread allocates is added to `count`, and removed when it is freed, by whichever
// thread and however late. The innermost of several counts. LibTorch's allocations are seen on device types
// for which install_counting_allocator() was called; zero_pages() is seen always. Sizes are those asked for.
class CountAllocations {
 public:
  explicit CountAllocations(std::shared_ptr<ByteCount> count);
  ~CountAllocations();
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;

  // Of this thread; null: nobody counts.
  static const std::shared_ptr<ByteCount>& current();

 private:
  std::shared_ptr<ByteCount> outer_;
};

// Puts a counting allocator before LibTorch's own one for kCPU or kMeta (other devices do not ask the
// registry), for the rest of the process: tensors keep a pointer to their allocator. Where nobody counts, it
// hands on what the other one returns. Call it before other threads allocate; a second call does nothing.
void install_counting_allocator(c10::DeviceType type);

}  // namespace troupe
