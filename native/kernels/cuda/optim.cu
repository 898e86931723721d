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

struct Updated {
  float param, exp_avg, exp_avg_sq;
};

__device__ inline Updated updated(const AdamWConstants& c, float param, float grad, float exp_avg,
                                  float exp_avg_sq) {
  const float g = grad * c.grad_scale;
  const float m = exp_avg + (g - exp_avg) * c.one_minus_beta1;
  const float v = c.beta2 * exp_avg_sq + c.one_minus_beta2 * g * g;
  const float denominator = sqrtf(v) * c.inverse_sqrt_bias_correction2 + c.eps;
  return {param * c.decay - c.step_size * m / denominator, m, v};
}

template <bool kCompute>
__global__ void adamw_kernel(AdamWConstants c, int64_t n, float* __restrict__ param,
                             const float* __restrict__ grad, float* __restrict__ exp_avg,
                             float* __restrict__ exp_avg_sq, BFloat16* __restrict__ compute) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const Updated next = updated(c, param[i], grad[i], exp_avg[i], exp_avg_sq[i]);
    exp_avg[i] = next.exp_avg;
    exp_avg_sq[i] = next.exp_avg_sq;
    param[i] = next.param;
    if constexpr (kCompute) store(compute + i, next.param);
  }
}

__device__ inline BFloat16 rounded(float x, uint32_t random) {
  return __ushort_as_bfloat16(rounded_stochastically(__float_as_uint(x), random));
}

__global__ void adamw_bfloat16_kernel(AdamWConstants c, RoundingStream stream, int64_t n,
                                      BFloat16* __restrict__ param, const float* __restrict__ grad,
                                      BFloat16* __restrict__ exp_avg, BFloat16* __restrict__ exp_avg_sq) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const Updated next =
        updated(c, to_float(param[i]), grad[i], to_float(exp_avg[i]), to_float(exp_avg_sq[i]));
    const RandomBits random = random_bits(stream, i);
    param[i] = rounded(next.param, random.a >> 16);
    exp_avg[i] = rounded(next.exp_avg, random.a & 0xffffu);
    exp_avg_sq[i] = rounded(next.exp_avg_sq, random.b >> 16);
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

unsigned blocks_of(int64_t n) {
  return static_cast<unsigned>(std::min(kMaxBlocks, ceil_div(n, kThreads)));
}

void adamw(const AdamWConstants& c, int64_t n, float* param, const float* grad, float* exp_avg,
           float* exp_avg_sq, void* compute) {
  if (n == 0) return;
  const unsigned blocks = blocks_of(n);
  auto* copy = static_cast<BFloat16*>(compute);
  if (copy != nullptr) {
    launch_kernel(adamw_kernel<true>, blocks, kThreads, c, n, param, grad, exp_avg, exp_avg_sq, copy);
  } else {
    launch_kernel(adamw_kernel<false>, blocks, kThreads, c, n, param, grad, exp_avg, exp_avg_sq, copy);
  }
  check_launch("adamw");
}

void adamw_bfloat16(const AdamWConstants& c, const RoundingStream& stream, int64_t n, void* param,
                    const float* grad, void* exp_avg, void* exp_avg_sq) {
  if (n == 0) return;
  launch_kernel(adamw_bfloat16_kernel, blocks_of(n), kThreads, c, stream, n, static_cast<BFloat16*>(param),
                grad, static_cast<BFloat16*>(exp_avg), static_cast<BFloat16*>(exp_avg_sq));
  check_launch("adamw_bfloat16");
}

void add_sum_of_squares(const float* x, int64_t n, double* sum) {
  if (n == 0) return;
  const int64_t blocks = std::min(kSumBlocks, ceil_div(n, kThreads));
  const c10::DataPtr memory = scratch(2 * blocks);
  auto* partial = static_cast<double*>(memory.get());
  launch_kernel(sum_of_squares_kernel, static_cast<unsigned>(blocks), kThreads, x, n, partial);
  launch_kernel(add_partial_kernel, 1, kThreads, partial, blocks, sum);
  check_launch("sum_of_squares");
}

}  // namespace

const OptimKernels optim_table = {adamw, adamw_bfloat16, add_sum_of_squares};

}  // namespace troupe::kernels::cuda
