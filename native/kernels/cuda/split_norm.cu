// RMSNorm over columns of which some are elsewhere, on a GPU.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tables.h"

// One block per row; the formulas are those of cpu/split_norm.kernel.cc.
namespace troupe::kernels::cuda {

namespace {

constexpr int64_t kMaxThreads = 512;
constexpr int64_t kMaxStrips = 32;

__device__ float rstd_of(const SplitNormArgs& a, int64_t r) {
  return 1.0f / sqrtf(a.squares[r] / a.count + a.eps);
}

template <typename T>
__global__ void sums_kernel(SplitNormSums s, bool aligned) {
  const int64_t r = blockIdx.x, cols = s.norm.cols;
  const T* x = row_of<T>(s.x, r);
  const T* weight = static_cast<const T*>(s.norm.weight);
  const bool squares = s.dy.data == nullptr;
  float sum = 0;
  for (int64_t j = threadIdx.x * kPack; j < cols; j += blockDim.x * kPack) {
    const int64_t left = cols - j;
    const Pack value = load_pack(x + j, left, aligned);
    if (squares) {
      for (int k = 0; k < kPack; ++k) sum += value.v[k] * value.v[k];  // zero behind the row
    } else {
      const Pack grad = load_pack(row_of<T>(s.dy, r) + j, left, aligned);
      const Pack scale = load_pack(weight + j, left, aligned);
      for (int k = 0; k < kPack; ++k) sum += grad.v[k] * (scale.v[k] + s.norm.weight_offset) * value.v[k];
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) s.sums[r] = sum;
}

// y may be x: a thread writes only what it alone reads.
template <typename T>
__global__ void forward_kernel(SplitNormForward f, bool aligned) {
  const int64_t r = blockIdx.x, cols = f.norm.cols;
  const T* x = row_of<T>(f.x, r);
  T* y = row_of<T>(f.y, r);
  const T* weight = static_cast<const T*>(f.norm.weight);
  const float rstd = rstd_of(f.norm, r);
  for (int64_t j = threadIdx.x * kPack; j < cols; j += blockDim.x * kPack) {
    const int64_t left = cols - j;
    Pack value = load_pack(x + j, left, aligned);
    const Pack scale = load_pack(weight + j, left, aligned);
    for (int k = 0; k < kPack; ++k) value.v[k] = value.v[k] * rstd * (scale.v[k] + f.norm.weight_offset);
    store_pack(y + j, value, left, aligned);
  }
}

// dx may be dy.
template <typename T>
__global__ void backward_kernel(SplitNormBackward b, bool aligned) {
  const int64_t r = blockIdx.x, cols = b.norm.cols;
  const T* dy = row_of<T>(b.dy, r);
  const T* x = row_of<T>(b.x, r);
  T* dx = row_of<T>(b.dx, r);
  const T* weight = static_cast<const T*>(b.norm.weight);
  const float rstd = rstd_of(b.norm, r);
  const float projection = b.products[r] * rstd / b.norm.count;
  for (int64_t j = threadIdx.x * kPack; j < cols; j += blockDim.x * kPack) {
    const int64_t left = cols - j;
    const Pack grad = load_pack(dy + j, left, aligned);
    const Pack value = load_pack(x + j, left, aligned);
    const Pack scale = load_pack(weight + j, left, aligned);
    Pack out;
    for (int k = 0; k < kPack; ++k) {
      const float gradient = grad.v[k] * (scale.v[k] + b.norm.weight_offset);
      out.v[k] = rstd * (gradient - value.v[k] * rstd * projection);
    }
    store_pack(dx + j, out, left, aligned);
  }
}

// partial [strips, cols] of sum dy x rstd.
template <typename T>
__global__ void weight_kernel(SplitNormBackward b, float* partial) {
  const int64_t cols = b.norm.cols;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (j < cols) {
    const int64_t step = static_cast<int64_t>(gridDim.y) * kColumnLanes;
    for (int64_t r = blockIdx.y * kColumnLanes + threadIdx.y; r < b.norm.rows; r += step)
      sum += to_float(row_of<T>(b.dy, r)[j]) * to_float(row_of<T>(b.x, r)[j]) * rstd_of(b.norm, r);
  }
  sum = lane_sum(sum);
  if (threadIdx.y == 0 && j < cols) partial[blockIdx.y * cols + j] = sum;
}

template <typename T>
void sums(const SplitNormSums& s) {
  const auto [rows, cols] = std::pair(s.norm.rows, s.norm.cols);
  if (rows == 0) return;
  const bool aligned = aligned_rows<T>(s.x.data, s.x.stride) && aligned_rows<T>(s.dy.data, s.dy.stride) &&
                       aligned_rows<T>(s.norm.weight, 0);
  launch_kernel(sums_kernel<T>, static_cast<unsigned>(rows), row_threads(cols, kMaxThreads), s, aligned);
  check_launch("split_norm_sums");
}

template <typename T>
void forward(const SplitNormForward& f) {
  const auto [rows, cols] = std::pair(f.norm.rows, f.norm.cols);
  if (rows == 0) return;
  const bool aligned = aligned_rows<T>(f.x.data, f.x.stride) && aligned_rows<T>(f.y.data, f.y.stride) &&
                       aligned_rows<T>(f.norm.weight, 0);
  launch_kernel(forward_kernel<T>, static_cast<unsigned>(rows), row_threads(cols, kMaxThreads), f, aligned);
  check_launch("split_norm_forward");
}

template <typename T>
void backward(const SplitNormBackward& b) {
  const auto [rows, cols] = std::pair(b.norm.rows, b.norm.cols);
  if (rows == 0) return;
  // First, because dx may be dy.
  if (b.dweight != nullptr) {
    const int64_t strips = column_strips(rows, kMaxStrips);
    const c10::DataPtr memory = scratch(strips * cols);
    auto* partial = static_cast<float*>(memory.get());
    const dim3 grid(static_cast<unsigned>(ceil_div(cols, kWarp)), static_cast<unsigned>(strips));
    launch_kernel(weight_kernel<T>, grid, dim3(kWarp, kColumnLanes), b, partial);
    check_launch("split_norm_backward");
    add_columns(partial, strips, cols, b.dweight);
  }
  const bool aligned = aligned_rows<T>(b.dy.data, b.dy.stride) && aligned_rows<T>(b.x.data, b.x.stride) &&
                       aligned_rows<T>(b.dx.data, b.dx.stride) && aligned_rows<T>(b.norm.weight, 0);
  launch_kernel(backward_kernel<T>, static_cast<unsigned>(rows), row_threads(cols, kMaxThreads), b, aligned);
  check_launch("split_norm_backward");
}

}  // namespace

const SplitNormKernels split_norm_table = {{sums<float>, sums<BFloat16>},
                                           {forward<float>, forward<BFloat16>},
                                           {backward<float>, backward<BFloat16>}};

}  // namespace troupe::kernels::cuda
