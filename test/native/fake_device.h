// LibTorch's device for others, PrivateUse1, in the host's memory: no kernel of ours knows it. Include it in
// one file of a program.
#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "host_memory_device.h"

namespace troupe::test {

inline at::Device fake_device() {
  return {c10::DeviceType::PrivateUse1, 0};
}

namespace fake {

using Backend = HostMemoryDevice<c10::DeviceType::PrivateUse1, c10::DispatchKey::PrivateUse1>;
using Guard = Backend::Guard;
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// Autograd asks for the stream of the process's accelerator.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isAvailable() const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
};

[[maybe_unused]] const bool registered =
    (c10::SetAllocator(c10::DeviceType::PrivateUse1, Backend::allocator()), true);

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  Backend::all_operations(library);
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::register_privateuse1_backend("fake");
  Backend::own_operations(library);
}

}  // namespace fake

}  // namespace troupe::test
