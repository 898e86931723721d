// Maxima and sums of blocks of logits on a GPU.
#include "kernels/cpu/logit_blocks_kernels.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/logit_blocks.h"

// A warp takes a block of kLogitBlock entries, two to a lane.
namespace troupe::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kWarps = kThreads / kWarp;
static_assert(kLogitBlock == 2 * kWarp);

// The larger one, NaN when either is: no comparison with NaN holds but a != a.
struct MaxOrNan {
  __device__ float operator()(float a, float b) const { return a != a || b <= a ? a : b; }
};

struct Logits {
  const float* data;
  int64_t stride, vocab, blocks;

  __device__ float at(int64_t row, int64_t column) const {
    return column < vocab ? data[row * stride + column] : -INFINITY;
  }
};

__device__ inline int64_t block_of_warp() {
  return static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / kWarp;
}

__global__ void __launch_bounds__(kThreads) block_maxima_kernel(Logits logits, float* __restrict__ maxima) {
  const int64_t row = blockIdx.x, block = block_of_warp();
  if (block >= logits.blocks) return;
  const int64_t first = block * kLogitBlock + threadIdx.x % kWarp;
  const MaxOrNan larger;
  float top = larger(logits.at(row, first), logits.at(row, first + kWarp));
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    top = larger(top, __shfl_xor_sync(kAllLanes, top, offset));
  }
  if (threadIdx.x % kWarp == 0) maxima[row * logits.blocks + block] = top == INFINITY ? NAN : top;
}

__global__ void __launch_bounds__(kThreads)
    row_maxima_kernel(const float* __restrict__ maxima, int64_t blocks, float* __restrict__ tops) {
  const int64_t row = blockIdx.x;
  const MaxOrNan larger;
  float top = -INFINITY;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) top = larger(top, maxima[row * blocks + b]);
  top = block_reduce(top, larger);
  if (threadIdx.x == 0) tops[row] = top;
}

__global__ void __launch_bounds__(kThreads)
    block_sums_kernel(Logits logits, const float* __restrict__ tops, float inv_temperature,
                      double* __restrict__ sums) {
  const int64_t row = blockIdx.x, block = block_of_warp();
  if (block >= logits.blocks) return;
  const int64_t first = block * kLogitBlock + threadIdx.x % kWarp;
  const float top = tops[row];
  const double sum =
      warp_sum(static_cast<double>(expf((logits.at(row, first) - top) * inv_temperature)) +
               static_cast<double>(expf((logits.at(row, first + kWarp) - top) * inv_temperature)));
  if (threadIdx.x % kWarp == 0) sums[row * logits.blocks + block] = sum;
}

__global__ void __launch_bounds__(kLogitBlock)
    gather_blocks_kernel(Logits logits, const int32_t* __restrict__ index, float* __restrict__ out) {
  const int64_t i = blockIdx.x;
  out[i * kLogitBlock + threadIdx.x] = logits.at(index[2 * i], index[2 * i + 1] * kLogitBlock + threadIdx.x);
}

Logits view(const at::Tensor& logits) {
  const int64_t vocab = logits.size(1);
  return {logits.const_data_ptr<float>(), logits.stride(0), vocab, ceil_div(vocab, kLogitBlock)};
}

}  // namespace

void scan_logits(const at::Tensor& logits, float inv_temperature, const at::Tensor& maxima,
                 const at::Tensor& sums) {
  const Logits in = view(logits);
  const auto rows = static_cast<unsigned>(logits.size(0));
  if (rows == 0) return;
  const dim3 grid(rows, static_cast<unsigned>(ceil_div(in.blocks, kWarps)));
  const c10::DataPtr tops = scratch(rows);
  auto* row_maxima = static_cast<float*>(tops.get());
  block_maxima_kernel<<<grid, kThreads, 0, stream()>>>(in, maxima.mutable_data_ptr<float>());
  row_maxima_kernel<<<rows, kThreads, 0, stream()>>>(maxima.const_data_ptr<float>(), in.blocks, row_maxima);
  block_sums_kernel<<<grid, kThreads, 0, stream()>>>(in, row_maxima, inv_temperature,
                                                     sums.mutable_data_ptr<double>());
  check_launch("scan_logits");
}

void gather_blocks(const at::Tensor& logits, const at::Tensor& index, const at::Tensor& out) {
  const auto n = static_cast<unsigned>(index.size(0));
  if (n == 0) return;
  gather_blocks_kernel<<<n, static_cast<unsigned>(kLogitBlock), 0, stream()>>>(
      view(logits), index.const_data_ptr<int32_t>(), out.mutable_data_ptr<float>());
  check_launch("gather_blocks");
}

}  // namespace troupe::kernels::cuda
