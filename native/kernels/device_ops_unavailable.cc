// In place of kernels/cuda in builds without CUDA.
#include "kernels/device_ops.h"

namespace troupe::kernels {

const DeviceOps* device_ops() {
  return nullptr;
}

}  // namespace troupe::kernels
