// A c10 allocator that counts for whoever asked, and hands on to LibTorch's own.
#include "base/counting_allocator.h"

#include <c10/core/Allocator.h>

#include <limits>
#include <utility>

namespace troupe {

namespace {

thread_local std::shared_ptr<ByteCount> current_count;

// What a counted allocation carries: the memory, and where it is counted.
struct Counted {
  c10::DataPtr memory;
  int64_t bytes;
  std::shared_ptr<ByteCount> count;
};

void free_counted(void* context) {
  const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
  counted->count->remove(counted->bytes);
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = inner_->allocate(bytes);
    if (!current_count || bytes == 0) return memory;
    const auto size = static_cast<int64_t>(bytes);
    current_count->add(size);
    void* const data = memory.get();
    const c10::Device device = memory.device();
    return {data, new Counted{std::move(memory), size, current_count}, free_counted, device};
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    inner_->copy_data(dest, src, count);
  }

 private:
  c10::Allocator* inner_;
};

}  // namespace

void ByteCount::add(int64_t bytes) {
  total_.fetch_add(bytes);
  const int64_t live = live_.fetch_add(bytes) + bytes;
  int64_t peak = peak_.load();
  while (peak < live && !peak_.compare_exchange_weak(peak, live)) {
  }
}

CountAllocations::CountAllocations(std::shared_ptr<ByteCount> count)
    : outer_(std::exchange(current_count, std::move(count))) {}

CountAllocations::~CountAllocations() {
  current_count = std::move(outer_);
}

const std::shared_ptr<ByteCount>& CountAllocations::current() {
  return current_count;
}

void install_counting_allocator(c10::DeviceType type) {
  c10::Allocator* inner = c10::GetAllocator(type);
  if (dynamic_cast<CountingAllocator*>(inner) != nullptr) return;
  // Never freed, as LibTorch demands of its allocators.
  c10::SetAllocator(type, new CountingAllocator(inner), std::numeric_limits<uint8_t>::max());
}

}  // namespace troupe
