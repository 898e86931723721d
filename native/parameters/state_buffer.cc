// Moves between host and device.
#include "parameters/state_buffer.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/simulated.h"
#include "base/zero_pages.h"

namespace troupe {

namespace {

at::Tensor zeros(int64_t count, at::ScalarType dtype, at::Device device, bool lazily) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  return lazily ? zero_pages(count, options) : at::zeros({count}, options);
}

// Zeroed memory of the host beside `device`.
at::Tensor host_zeros(int64_t count, at::ScalarType dtype, at::Device device, bool lazily) {
  if (!device.is_cuda()) {  // a CPU, or a simulation: of a GPU's memory only what lies there counts
    const CountAllocations nowhere(SimulateGpu::active() ? nullptr : CountAllocations::current());
    return zeros(count, dtype, device, lazily);
  }
  return at::zeros({count}, at::TensorOptions().dtype(dtype).pinned_memory(true));
}

}  // namespace

StateBuffer::StateBuffer(int64_t count, at::ScalarType dtype, at::Device device, bool lazily, bool on_host)
    : device_(on_host ? FlatBuffer(count, dtype, device) : FlatBuffer(zeros(count, dtype, device, lazily))) {
  if (on_host) host_ = host_zeros(count, dtype, device, lazily);
}

void StateBuffer::keep_on_host() {
  if (!defined() || on_host()) return;
  const at::Tensor host =
      host_zeros(tensor().numel(), tensor().scalar_type(), tensor().device(), /*lazily=*/true);
  host.copy_(tensor());
  host_ = host;
  device_.release();
}

void StateBuffer::keep_on_device() {
  if (!defined() || !on_host()) return;
  device_.allocate();
  device_.tensor().copy_(host_);
  host_ = at::Tensor();
}

void StateBuffer::fetch() {
  if (!on_host() || device_.allocated()) return;
  device_.allocate();
  device_.tensor().copy_(host_, /*non_blocking=*/true);
}

void StateBuffer::give_back(bool changed) {
  if (!on_host() || !device_.allocated()) return;
  if (changed) host_.copy_(device_.tensor());
  device_.release();
}

void StateBuffer::clear() {
  if (!defined()) return;
  give_back(false);
  // A fetch may still be reading what the host now overwrites.
  const at::Device device = tensor().device();
  if (on_host() && device.is_cuda())
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  kept().zero_();
}

}  // namespace troupe
