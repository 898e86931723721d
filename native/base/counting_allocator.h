// Counts the bytes that LibTorch allocates, live and at most: what tests and simulations assert memory with.
#pragma once

#include <c10/core/DeviceType.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace troupe {

// What memory is for.
enum class MemoryPart : uint8_t {
  kState,        // parameters, gradients, moments: what an engine holds between two verbs
  kGathered,     // whole parameters and gradients of a shard at work, buffers of collectives, what is fetched
  kActivations,  // all that is not said to be anything else
  kHead,         // logits and what goes with them
  kKvCache,
};
constexpr size_t kMemoryParts = 5;
using MemoryParts = std::array<int64_t, kMemoryParts>;

// What this thread allocates while it lives is for `part`; the innermost of several.
class AllocateFor {
 public:
  explicit AllocateFor(MemoryPart part);
  ~AllocateFor();
  AllocateFor(const AllocateFor&) = delete;
  AllocateFor& operator=(const AllocateFor&) = delete;

  static MemoryPart current();

 private:
  MemoryPart outer_;
};

// Bytes that are held, and the most that were held at one time. Any thread may call.
class ByteCount {
 public:
  // How many bytes an allocation of so many takes; null: as many.
  using Rounding = int64_t (*)(int64_t bytes);
  explicit ByteCount(Rounding rounding = nullptr) : rounding_(rounding) {}

  void add(int64_t bytes, MemoryPart part = AllocateFor::current());
  void remove(int64_t bytes, MemoryPart part = AllocateFor::current());
  int64_t live() const;
  int64_t peak() const;
  // What was held when it was most, and for what the allocation was that made it so.
  MemoryParts parts_at_peak() const;
  MemoryPart last_at_peak() const;
  // All that was ever added.
  int64_t total() const;
  // From now on: the most above what is held now is not remembered.
  void restart_peak();

 private:
  const Rounding rounding_;
  mutable std::mutex mutex_;
  int64_t live_ = 0, peak_ = 0, total_ = 0;
  MemoryParts parts_{}, parts_at_peak_{};
  MemoryPart last_at_peak_ = MemoryPart::kActivations;
};

// While it lives, what its thread allocates is added to `count`, and removed when it is freed, by whichever
// thread and however late. The innermost of several counts. LibTorch's allocations are seen on device types
// for which install_counting_allocator() was called (`only`: of that type alone); zero_pages() is seen
// always. Sizes are those asked for.
class CountAllocations {
 public:
  explicit CountAllocations(std::shared_ptr<ByteCount> count,
                            std::optional<c10::DeviceType> only = std::nullopt);
  ~CountAllocations();
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;

  // Of this thread; null: nobody counts.
  static const std::shared_ptr<ByteCount>& current();
  // The same for allocations of this type.
  static std::shared_ptr<ByteCount> current(c10::DeviceType type);

 private:
  std::shared_ptr<ByteCount> outer_;
  std::optional<c10::DeviceType> outer_only_;
};

// Puts a counting allocator before LibTorch's own one for kCPU or kMeta (other devices do not ask the
// registry), for the rest of the process: tensors keep a pointer to their allocator. Where nobody counts, it
// hands on what the other one returns. Call it before other threads allocate; a second call does nothing.
void install_counting_allocator(c10::DeviceType type);

}  // namespace troupe
