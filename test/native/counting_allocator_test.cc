#include "base/counting_allocator.h"

#include <ATen/ATen.h>

#include <thread>

#include "base/zero_pages.h"
#include "check.h"

using namespace troupe;

namespace {

struct Installed {
  Installed() {
    install_counting_allocator(at::kCPU);
    install_counting_allocator(at::kCPU);  // would count everything twice if it were not refused
    install_counting_allocator(at::kMeta);
  }
} const installed;

}  // namespace

TEST(live_and_peak_bytes_of_tensors) {
  const auto count = std::make_shared<ByteCount>();
  const CountAllocations scope(count);
  at::Tensor kept = at::empty({100});
  CHECK(count->live() == 400);
  at::empty({1000}, at::kBFloat16);
  CHECK(count->live() == 400);
  CHECK(count->peak() == 2400);
  const at::Tensor view = kept.narrow(0, 0, 10);
  kept = at::Tensor();
  CHECK(count->live() == 400);
  count->restart_peak();
  CHECK(count->peak() == 400);
  const at::Tensor more = at::empty({10});
  CHECK(count->peak() == 440);
  CHECK(count->total() == 2440);
}

TEST(each_thread_counts_for_itself_and_memory_is_removed_where_it_was_added) {
  const auto count = std::make_shared<ByteCount>(), other = std::make_shared<ByteCount>();
  at::Tensor from_there;
  {
    const CountAllocations scope(count);
    std::thread([&] {
      at::empty({7});  // nobody counts here
      const CountAllocations there(other);
      from_there = at::empty({5});
    }).join();
    CHECK(count->peak() == 0);
    {
      const CountAllocations inner(other);
      at::empty({50});
    }
    CHECK(other->live() == 20);
    CHECK(other->peak() == 220);
    CHECK(CountAllocations::current() == count);
  }
  CHECK(CountAllocations::current() == nullptr);
  from_there = at::empty({9});
  CHECK(other->live() == 0);
  CHECK(count->peak() == 0);
}

TEST(pages_that_are_mapped_and_meta_tensors_count_too) {
  const auto count = std::make_shared<ByteCount>();
  const CountAllocations scope(count);
  {
    const at::Tensor pages = zero_pages(1024, at::kCPU);
    CHECK(count->live() == 4096);
    const at::Tensor nowhere = at::empty({1'000'000'000'000}, at::kMeta);
    CHECK(count->live() == 4096 + 4'000'000'000'000);
  }
  CHECK(count->live() == 0);
}

TEST_MAIN()
