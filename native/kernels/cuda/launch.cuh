// The launch of a kernel, in the language that only nvcc reads: tests put another in its place.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <type_traits>

namespace troupe::kernels::cuda {

// On the current stream, without dynamic shared memory. Whether it was accepted: check_launch() in
// device.cuh.
template <typename... Parameters>
void launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   std::type_identity_t<Parameters>... arguments) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  kernel<<<grid, block, 0, stream>>>(arguments...);
}

}  // namespace troupe::kernels::cuda
