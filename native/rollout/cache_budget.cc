// Memory of devices and machines.
#include "rollout/cache_budget.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"

namespace troupe {
namespace {

// On a CPU gpu_memory_utilization 1 means this share of memory: weights, gradients and moments lie there,
// too.
constexpr double kHostShare = 0.25;

int64_t host_memory() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  if (int64_t most = 0; limit >> most) bytes = std::min(bytes, most);
  return bytes;
}

}  // namespace

int64_t cache_budget(at::Device device, double share) {
  require(share > 0 && share <= 1, ErrorCode::kInvalidArgument,
          "[rollout] expected gpu_memory_utilization above 0 and at most 1 but got ", share);
  if (device.is_cpu()) return static_cast<int64_t>(share * kHostShare * static_cast<double>(host_memory()));
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  require(allocator != nullptr, ErrorCode::kInternal, "[rollout] no allocator says how much memory there is");
  const int64_t index = device.has_index() ? device.index() : 0;
  const auto [free, total] = allocator->getMemoryInfo(static_cast<c10::DeviceIndex>(index));
  const int64_t own =
      allocator->getDeviceStats(static_cast<c10::DeviceIndex>(index)).reserved_bytes[0].current;
  const int64_t allowed = static_cast<int64_t>(share * static_cast<double>(total)) - own;
  return std::clamp<int64_t>(allowed, 0, static_cast<int64_t>(free));
}

}  // namespace troupe
