// Memory of devices and machines.
#include "rollout/cache_budget.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "base/error.h"

namespace troupe {
namespace {

// On a CPU gpu_memory_utilization 1 means this share of memory: weights, gradients and moments lie there,
// too.
constexpr double kHostShare = 0.25;

int64_t host_memory() {
  const int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return std::min(bytes, control_group_limit("/proc/self/cgroup", "/sys/fs/cgroup"));
}

// Of the group at `path` below `root`, and of all above it up to the root.
int64_t least_above(const std::string& root, std::string path, const char* file) {
  int64_t least = std::numeric_limits<int64_t>::max();
  while (true) {
    std::ifstream limit(root + path + "/" + file);
    if (int64_t most = 0; limit >> most) least = std::min(least, most);  // "max" is no number
    if (path.empty()) return least;
    const size_t slash = path.rfind('/');
    path.erase(slash == std::string::npos ? 0 : slash);
  }
}

c10::DeviceAllocator& allocator_of(at::Device device) {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  require(allocator != nullptr, ErrorCode::kInternal, "[rollout] no allocator says how much memory there is");
  return *allocator;
}

}  // namespace

int64_t control_group_limit(const std::string& groups, const std::string& root) {
  int64_t least = std::numeric_limits<int64_t>::max();
  std::ifstream lines(groups);
  // "0::/path" of version 2, "4:memory:/path" of version 1.
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = ",";
    controllers.append(line, first + 1, second - first - 1).push_back(',');
    std::string path = line.substr(second + 1);
    while (!path.empty() && path.back() == '/') path.pop_back();
    if (controllers == ",,") {
      least = std::min(least, least_above(root, path, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, least_above(root + "/memory", path, "memory.limit_in_bytes"));
    }
  }
  return least;
}

int64_t cache_budget(at::Device device, double share) {
  require(share > 0 && share <= 1, ErrorCode::kInvalidArgument,
          "[rollout] expected gpu_memory_utilization above 0 and at most 1 but got ", share);
  if (device.is_cpu()) return static_cast<int64_t>(share * kHostShare * static_cast<double>(host_memory()));
  // Or else it counts as held by this process, and as free for nobody.
  return_free_memory(device);
  c10::DeviceAllocator& allocator = allocator_of(device);
  const int64_t index = device.has_index() ? device.index() : 0;
  const auto [free, total] = allocator.getMemoryInfo(static_cast<c10::DeviceIndex>(index));
  const int64_t own =
      allocator.getDeviceStats(static_cast<c10::DeviceIndex>(index)).reserved_bytes[0].current;
  const int64_t allowed = static_cast<int64_t>(share * static_cast<double>(total)) - own;
  return std::clamp<int64_t>(allowed, 0, static_cast<int64_t>(free));
}

void return_free_memory(at::Device device) {
  if (!device.is_cpu() && !device.is_meta()) allocator_of(device).emptyCache();
}

}  // namespace troupe
