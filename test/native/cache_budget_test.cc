// How much memory keys and values may take, on a machine and on a device whose allocator says what there is.
#include "rollout/cache_budget.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "check.h"

using namespace troupe;

namespace {

// LibTorch's device for others. It gives no memory: it is asked how much there is.
class Told final : public c10::DeviceAllocator {
 public:
  size_t free = 0, total = 0;
  int64_t reserved = 0;  // of this process
  int64_t unused = 0;    // of this: freed, and kept

  c10::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void*, const void*, std::size_t) const override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    free += static_cast<size_t>(unused);
    reserved -= std::exchange(unused, 0);
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.reserved_bytes[0].current = reserved;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override { return {free, total}; }
};

}  // namespace

TEST(the_cache_takes_the_share_of_memory_that_is_asked_for) {
  const int64_t whole = cache_budget(at::kCPU, 1);
  CHECK(whole > int64_t{1} << 20);
  for (const double share : {0.5, 0.1, 0.001})
    CHECK_CLOSE(static_cast<double>(cache_budget(at::kCPU, share)), share * static_cast<double>(whole), 1);
  CHECK_THROWS(cache_budget(at::kCPU, 0), "expected gpu_memory_utilization above 0 and at most 1 but got 0");
  CHECK_THROWS(cache_budget(at::kCPU, 1.5), "above 0 and at most 1 but got 1.5");
}

TEST(the_cache_knows_the_limits_of_control_groups) {
  const std::filesystem::path root = std::filesystem::temp_directory_path() / "troupe_control_groups";
  const auto write = [&](const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text << "\n";
  };
  const auto limit_of = [&](const std::string& groups) {
    write("groups", groups);
    return control_group_limit((root / "groups").string(), root.string());
  };
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  write("slurm/job_1/memory.max", "3000");
  write("slurm/job_1/step_0/memory.max", "max");
  write("slurm/memory.max", "9000");
  write("memory/docker/a/memory.limit_in_bytes", "2000");
  write("memory/memory.limit_in_bytes", "9223372036854771712");
  CHECK(limit_of("0::/slurm/job_1/step_0") == 3000);
  CHECK(limit_of("0::/slurm/job_2/step_0") == 9000);
  CHECK(limit_of("0::/") == kNone);
  CHECK(limit_of("5:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n0::/") == 2000);
  CHECK(limit_of("4:memory:/elsewhere") == int64_t{9223372036854771712});
  CHECK(limit_of("what is this\n:\n") == kNone);
  write("memory.max", "500");
  CHECK(limit_of("0::/") == 500);
  std::filesystem::remove_all(root);
  CHECK(control_group_limit((root / "groups").string(), root.string()) == kNone);
}

TEST(a_device_gives_its_share_less_what_the_process_holds) {
  Told allocator;
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &allocator);
  const at::Device device(c10::DeviceType::PrivateUse1, 0);
  allocator.total = 1000;
  allocator.free = 700;
  allocator.reserved = 200;
  CHECK(cache_budget(device, 0.5) == 300);
  CHECK(cache_budget(device, 0.25) == 50);
  CHECK(cache_budget(device, 0.1) == 0);                          // it holds more already
  CHECK(cache_budget(device, 1) == 700);                          // others hold the rest
  CHECK(cache_budget(c10::DeviceType::PrivateUse1, 0.5) == 300);  // the first one
}

// As after a model has been loaded through buffers.
TEST(what_a_process_has_freed_is_the_caches) {
  Told allocator;
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &allocator);
  const at::Device device(c10::DeviceType::PrivateUse1, 0);
  for (const auto& [share, expected] : {std::pair{0.5, 300}, {1.0, 700}}) {
    allocator.total = 1000;
    allocator.free = 200;
    allocator.reserved = 700;
    allocator.unused = 500;
    CHECK(cache_budget(device, share) == expected);
  }
}

TEST_MAIN()
