// Which kernel multiplies by group.
#include "kernels/cuda/grouped_gemm.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/_grouped_mm.h>

namespace troupe::kernels::cuda {

namespace {

constexpr int64_t kAlignment = 16;  // bytes

bool aligned(const at::Tensor& x) {
  if (reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kAlignment != 0) return false;
  for (int64_t d = 0; d < x.dim(); ++d) {
    const int64_t stride = x.stride(d) * static_cast<int64_t>(x.element_size());
    if (x.stride(d) != 1 && stride % kAlignment != 0) return false;
  }
  return true;
}

// Elsewhere LibTorch has the host read where the groups begin.
bool by_libtorch(const at::Tensor& x, const at::Tensor& weights) {
  const int64_t multiple = kAlignment / 2;
  return x.scalar_type() == at::kBFloat16 && at::cuda::getCurrentDeviceProperties()->major == 9 &&
         aligned(x) && aligned(weights) && weights.size(1) % multiple == 0 && weights.size(2) % multiple == 0;
}

}  // namespace

at::Tensor grouped_gemm(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& starts) {
  if (x.size(0) > 0 && by_libtorch(x, weights))
    return at::_grouped_mm(x, weights, starts.narrow(0, 1, weights.size(0)));
  const at::Tensor y = at::empty({x.size(0), weights.size(2)}, x.options());
  grouped_rows(x, weights, starts, y);
  return y;
}

}  // namespace troupe::kernels::cuda
