// Scratch memory of kernels, from the device's allocator.
#pragma once

#include <c10/core/Allocator.h>

namespace c10::cuda::CUDACachingAllocator {

inline c10::Allocator* get() {
  return c10::GetAllocator(c10::DeviceType::CUDA);
}

}  // namespace c10::cuda::CUDACachingAllocator
