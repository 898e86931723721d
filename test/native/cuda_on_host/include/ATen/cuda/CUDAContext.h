// What kernels/cuda asks of the GPU: its generation, and a handle of cuBLAS.
#pragma once

#include "cublas_v2.h"

namespace at::cuda {

struct DeviceProperties {
  int major;
};
DeviceProperties* getCurrentDeviceProperties();

inline cublasHandle_t getCurrentCUDABlasHandle() {
  return nullptr;
}

}  // namespace at::cuda
