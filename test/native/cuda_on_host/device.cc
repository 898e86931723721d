// The GPU: a device of LibTorch's type CUDA in the host's memory, in LibTorch for CPUs.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include "host_memory_device.h"

namespace troupe::test::cuda_on_host {
namespace {

using Backend = HostMemoryDevice<c10::DeviceType::CUDA, c10::DispatchKey::CUDA>;
using Guard = Backend::Guard;
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

[[maybe_unused]] const bool registered =
    (c10::SetAllocator(c10::DeviceType::CUDA, Backend::allocator()), true);

// A GPU's sorts the rows, and adds them in one order.
void index_put(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::Context& context = at::globalContext();
  const bool before = context.deterministicAlgorithms(), warned = context.deterministicAlgorithmsWarnOnly();
  context.setDeterministicAlgorithms(true, false);
  Backend::run(op, stack);
  context.setDeterministicAlgorithms(before, warned);
}

// A GPU's adds with atomics: what meets in one place is added in any order, and may round differently.
void scatter_add(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Backend::Mirrors mirrors;
  const auto argument = [&](size_t i) { return (*stack)[stack->size() - 4 + i]; };
  const at::Tensor self = mirrors.of(argument(0).toTensor()), index = mirrors.of(argument(2).toTensor()),
                   source = mirrors.of(argument(3).toTensor());
  const at::Tensor met =
      at::zeros(self.sizes(), at::kInt).scatter_add_(argument(1).toInt(), index, source.ne(0).to(at::kInt));
  TORCH_CHECK(met.numel() == 0 || met.max().item<int32_t>() <= 1, "scatter_add_ of ",
              met.max().item<int32_t>(), " numbers into one place: a GPU adds them in any order");
  Backend::run(op, stack);
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  Backend::all_operations(library);
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  Backend::own_operations(library);
  library.impl("_index_put_impl_", torch::CppFunction::makeFromBoxedFunction<&index_put>());
  library.impl("scatter_add_", torch::CppFunction::makeFromBoxedFunction<&scatter_add>());
}

}  // namespace
}  // namespace troupe::test::cuda_on_host

namespace at {

// By this name LibTorch looks for it.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex current_device() const override { return 0; }
  const Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return detail::getDefaultCPUGenerator();
  }
  // All memory of the host is as good as pinned.
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  bool isPinnedPtr(const void*) const override { return true; }
};
REGISTER_CUDA_HOOKS(CUDAHooks)

cuda::DeviceProperties* cuda::getCurrentDeviceProperties() {
  static DeviceProperties ampere{8};
  return &ampere;
}

}  // namespace at
