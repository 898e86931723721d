// In place of native/kernels/cuda/launch.cuh: the launch of a kernel whose threads are the host's.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <type_traits>

#include "cuda_on_host/launch.h"

namespace troupe::kernels::cuda {

template <typename... Parameters>
void launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   std::type_identity_t<Parameters>... arguments) {
  test::cuda_on_host::launch(__PRETTY_FUNCTION__, {grid, block}, [&] { kernel(arguments...); });
}

}  // namespace troupe::kernels::cuda
