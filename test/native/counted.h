#pragma once

#include "base/counting_allocator.h"

// LibTorch's allocations on the CPU are counted in every test that includes this: before main, as the first
// of them may come from a static.
namespace troupe::test {

inline const bool kCounted = [] {
  install_counting_allocator(at::kCPU);
  return true;
}();

}  // namespace troupe::test
