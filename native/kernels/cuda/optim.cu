// AdamW and the sum of squares on a GPU.
#include <vector>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tables.h"

// AdamW in one pass over memory (gradient scaling, both moments, decay, step, bfloat16 copy of the new
// weight), and the sum of squares without a double copy of the gradient. The step is bound by memory, and
// LibTorch's own operations read and write each buffer several times. Formulas: cpu/adamw.kernel.cc.
namespace troupe::kernels::cuda {

namespace {

constexpr int kThreads = 256;
// Blocks walk over the buffer in strides of the grid: enough to fill any device, and no limit on its length.
constexpr int64_t kMaxBlocks = 4096;
constexpr int64_t kSumBlocks = 1024;

template <bool kCompute>
__global__ void adamw_kernel(AdamWConstants c, int64_t n, float* __restrict__ param,
                             const float* __restrict__ grad, float* __restrict__ exp_avg,
                             float* __restrict__ exp_avg_sq, BFloat16* __restrict__ compute) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const float g = grad[i] * c.grad_scale;
    const float m = exp_avg[i] + (g - exp_avg[i]) * c.one_minus_beta1;
    const float v = c.beta2 * exp_avg_sq[i] + c.one_minus_beta2 * g * g;
    const float denominator = sqrtf(v) * c.inverse_sqrt_bias_correction2 + c.eps;
    const float p = param[i] * c.decay - c.step_size * m / denominator;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = p;
    if constexpr (kCompute) store(compute + i, p);
  }
}

__global__ void sum_of_squares_kernel(const float* x, int64_t n, double* partial) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  double sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    sum += static_cast<double>(x[i]) * x[i];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

void adamw(const AdamWConstants& c, int64_t n, float* param, const float* grad, float* exp_avg,
           float* exp_avg_sq, void* compute) {
  if (n == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(kMaxBlocks, ceil_div(n, kThreads)));
  auto* copy = static_cast<BFloat16*>(compute);
  if (copy != nullptr) {
    adamw_kernel<true><<<blocks, kThreads, 0, stream()>>>(c, n, param, grad, exp_avg, exp_avg_sq, copy);
  } else {
    adamw_kernel<false><<<blocks, kThreads, 0, stream()>>>(c, n, param, grad, exp_avg, exp_avg_sq, copy);
  }
  check_launch("adamw");
}

double sum_of_squares(const float* x, int64_t n) {
  if (n == 0) return 0;
  const int64_t blocks = std::min(kSumBlocks, ceil_div(n, kThreads));
  const c10::DataPtr memory = scratch(2 * blocks);
  auto* partial = static_cast<double*>(memory.get());
  sum_of_squares_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream()>>>(x, n, partial);
  check_launch("sum_of_squares");
  std::vector<double> parts(static_cast<size_t>(blocks));
  cudaError_t status =
      cudaMemcpyAsync(parts.data(), partial, parts.size() * sizeof(double), cudaMemcpyDeviceToHost, stream());
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream());
  require(status == cudaSuccess, ErrorCode::kInternal,
          "[kernels] sum_of_squares: ", cudaGetErrorString(status));
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

}  // namespace

const OptimKernels optim_table = {adamw, sum_of_squares};

}  // namespace troupe::kernels::cuda
