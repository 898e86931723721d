// A c10 allocator that counts for whoever asked, and hands on to LibTorch's own.
#include "base/counting_allocator.h"

#include <c10/core/Allocator.h>

#include <limits>
#include <utility>

namespace troupe {

namespace {

thread_local std::shared_ptr<ByteCount> current_count;
thread_local std::optional<c10::DeviceType> counted_type;
thread_local MemoryPart current_part = MemoryPart::kActivations;

// What a counted allocation carries: the memory, and where it is counted.
struct Counted {
  c10::DataPtr memory;
  int64_t bytes;
  MemoryPart part;
  std::shared_ptr<ByteCount> count;
};

void free_counted(void* context) {
  const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
  counted->count->remove(counted->bytes, counted->part);
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = inner_->allocate(bytes);
    std::shared_ptr<ByteCount> count = CountAllocations::current(memory.device().type());
    if (!count || bytes == 0) return memory;
    const auto size = static_cast<int64_t>(bytes);
    count->add(size);
    void* const data = memory.get();
    const c10::Device device = memory.device();
    return {data, new Counted{std::move(memory), size, current_part, std::move(count)}, free_counted, device};
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    inner_->copy_data(dest, src, count);
  }

 private:
  c10::Allocator* inner_;
};

}  // namespace

AllocateFor::AllocateFor(MemoryPart part) : outer_(std::exchange(current_part, part)) {}

AllocateFor::~AllocateFor() {
  current_part = outer_;
}

MemoryPart AllocateFor::current() {
  return current_part;
}

void ByteCount::add(int64_t bytes, MemoryPart part) {
  if (rounding_ != nullptr) bytes = rounding_(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  total_ += bytes;
  live_ += bytes;
  parts_[static_cast<size_t>(part)] += bytes;
  if (live_ <= peak_) return;
  peak_ = live_;
  parts_at_peak_ = parts_;
  last_at_peak_ = part;
}

void ByteCount::remove(int64_t bytes, MemoryPart part) {
  if (rounding_ != nullptr) bytes = rounding_(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  live_ -= bytes;
  parts_[static_cast<size_t>(part)] -= bytes;
}

int64_t ByteCount::live() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return live_;
}

int64_t ByteCount::peak() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return peak_;
}

int64_t ByteCount::total() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return total_;
}

MemoryParts ByteCount::parts_at_peak() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return parts_at_peak_;
}

MemoryPart ByteCount::last_at_peak() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_at_peak_;
}

void ByteCount::restart_peak() {
  const std::lock_guard<std::mutex> lock(mutex_);
  peak_ = live_;
  parts_at_peak_ = parts_;
  last_at_peak_ = MemoryPart::kState;
}

CountAllocations::CountAllocations(std::shared_ptr<ByteCount> count, std::optional<c10::DeviceType> only)
    : outer_(std::exchange(current_count, std::move(count))),
      outer_only_(std::exchange(counted_type, only)) {}

CountAllocations::~CountAllocations() {
  current_count = std::move(outer_);
  counted_type = outer_only_;
}

const std::shared_ptr<ByteCount>& CountAllocations::current() {
  return current_count;
}

std::shared_ptr<ByteCount> CountAllocations::current(c10::DeviceType type) {
  return counted_type && *counted_type != type ? nullptr : current_count;
}

void install_counting_allocator(c10::DeviceType type) {
  c10::Allocator* inner = c10::GetAllocator(type);
  if (dynamic_cast<CountingAllocator*>(inner) != nullptr) return;
  // Never freed, as LibTorch demands of its allocators.
  c10::SetAllocator(type, new CountingAllocator(inner), std::numeric_limits<uint8_t>::max());
}

}  // namespace troupe
