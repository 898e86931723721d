#include "cuda_on_host/launch.h"

#include <string>
#include <utility>

#include "cuda_on_host/language.h"

namespace troupe::test::cuda_on_host {
namespace {

constexpr unsigned kMostThreads = 1024, kMostAside = 65535;

std::string& refused() {
  static std::string why;
  return why;
}

bool accepted(const Grid& grid) {
  const Extent &blocks = grid.blocks, &threads = grid.threads;
  return threads.count() > 0 && threads.count() <= kMostThreads && threads.z <= 64 && blocks.count() > 0 &&
         blocks.x <= 0x7fffffffu && blocks.y <= kMostAside && blocks.z <= kMostAside;
}

}  // namespace

void launch(const char* kernel, const Grid& grid, const std::function<void()>& body) {
  if (accepted(grid)) return run_grid(grid, kernel, body);
  const auto shown = [](const Extent& size) {
    return std::to_string(size.x) + " x " + std::to_string(size.y) + " x " + std::to_string(size.z);
  };
  refused() =
      "invalid configuration argument: blocks " + shown(grid.blocks) + ", threads " + shown(grid.threads);
}

}  // namespace troupe::test::cuda_on_host

cudaError_t cudaGetLastError() {
  static std::string told;
  std::string& why = troupe::test::cuda_on_host::refused();
  if (why.empty()) return cudaSuccess;
  told = std::exchange(why, {});
  return told.c_str();
}
