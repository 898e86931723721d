// AdamW and the sum of squares on a GPU.
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

// One block: *sum += the partial sums, in an order of its own that is the same in every run.
__global__ void add_partial_kernel(const double* partial, int64_t count, double* sum) {
  double own = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) own += partial[i];
  own = block_sum(own);
  if (threadIdx.x == 0) *sum += own;
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

void add_sum_of_squares(const float* x, int64_t n, double* sum) {
  if (n == 0) return;
  const int64_t blocks = std::min(kSumBlocks, ceil_div(n, kThreads));
  const c10::DataPtr memory = scratch(2 * blocks);
  auto* partial = static_cast<double*>(memory.get());
  sum_of_squares_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream()>>>(x, n, partial);
  add_partial_kernel<<<1, kThreads, 0, stream()>>>(partial, blocks, sum);
  check_launch("sum_of_squares");
}

}  // namespace

const OptimKernels optim_table = {adamw, add_sum_of_squares};

}  // namespace troupe::kernels::cuda
