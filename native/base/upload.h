// From the host to a device without waiting for what the device has been given before.
#pragma once

#include <ATen/ATen.h>

namespace troupe {

// `host` on `device`; itself where it lies there already. To a GPU from pinned memory, in the order of the
// current stream: a copy from pageable memory would make the host wait for all kernels before it.
inline at::Tensor upload(const at::Tensor& host, at::Device device) {
  const bool pinned = device.is_cuda() && host.is_cpu();
  return (pinned ? host.pin_memory() : host).to(device, /*non_blocking=*/host.is_cpu());
}

}  // namespace troupe
