// RMSNorm and LayerNorm on a GPU.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tables.h"

// RMSNorm and LayerNorm, one block per row; the formulas are those of cpu/norm.kernel.cc.
namespace troupe::kernels::cuda {

namespace {

constexpr int64_t kMaxThreads = 512;
constexpr int64_t kMaxStrips = 32;

// sum over j of value(pack of x, pack index, left) over one row, by the whole block.
template <typename Value>
__device__ float row_sum(int64_t cols, const Value& value) {
  float sum = 0;
  for (int64_t j = threadIdx.x * kPack; j < cols; j += blockDim.x * kPack) sum += value(j, cols - j);
  return block_sum(sum);
}

template <typename T>
__global__ void forward_kernel(NormForward a, bool aligned) {
  const int64_t r = blockIdx.x;
  const int64_t cols = a.norm.cols;
  const float count = static_cast<float>(cols);
  const T* x = row_of<T>(a.x, r);
  T* y = row_of<T>(a.y, r);
  const T* weight = static_cast<const T*>(a.weight);
  const T* bias = static_cast<const T*>(a.bias);
  float mean = 0;
  if (a.norm.layer_norm) {
    mean = row_sum(cols,
                   [&](int64_t j, int64_t left) {
                     const Pack pack = load_pack(x + j, left, aligned);
                     float sum = 0;
                     for (int k = 0; k < kPack; ++k) sum += pack.v[k];
                     return sum;
                   }) /
           count;
  }
  const float squares = row_sum(cols, [&](int64_t j, int64_t left) {
    const Pack pack = load_pack(x + j, left, aligned);
    float sum = 0;
    for (int k = 0; k < kPack; ++k) {
      const float centered = k < left ? pack.v[k] - mean : 0.0f;
      sum += centered * centered;
    }
    return sum;
  });
  const float rstd = 1.0f / sqrtf(squares / count + a.norm.eps);
  if (threadIdx.x == 0) {
    if (a.rstd != nullptr) a.rstd[r] = rstd;
    if (a.mean != nullptr) a.mean[r] = mean;
  }
  for (int64_t j = threadIdx.x * kPack; j < cols; j += blockDim.x * kPack) {
    const int64_t left = cols - j;
    Pack pack = load_pack(x + j, left, aligned);
    const Pack scale = load_pack(weight + j, left, aligned);
    for (int k = 0; k < kPack; ++k) {
      pack.v[k] = (pack.v[k] - mean) * rstd * (scale.v[k] + a.norm.weight_offset);
    }
    if (bias != nullptr) {
      const Pack shift = load_pack(bias + j, left, aligned);
      for (int k = 0; k < kPack; ++k) pack.v[k] += shift.v[k];
    }
    store_pack(y + j, pack, left, aligned);
  }
}

// dx may be dy: a thread writes only what it alone reads, after the sums.
template <typename T>
__global__ void backward_kernel(NormBackward a, bool aligned) {
  const int64_t r = blockIdx.x;
  const int64_t cols = a.norm.cols;
  const float count = static_cast<float>(cols);
  const float offset = a.norm.weight_offset;
  const T* dy = row_of<T>(a.dy, r);
  const T* x = row_of<T>(a.x, r);
  T* dx = row_of<T>(a.dx, r);
  const T* weight = static_cast<const T*>(a.weight);
  const float rstd = a.rstd[r];
  const float mean = a.norm.layer_norm ? a.mean[r] : 0.0f;
  float dot = 0, total = 0;
  for (int64_t j = threadIdx.x * kPack; j < cols; j += blockDim.x * kPack) {
    const int64_t left = cols - j;
    const Pack grad = load_pack(dy + j, left, aligned);
    const Pack value = load_pack(x + j, left, aligned);
    const Pack scale = load_pack(weight + j, left, aligned);
    for (int k = 0; k < kPack; ++k) {
      const float g = grad.v[k] * (scale.v[k] + offset);  // zero behind the row
      dot += g * (value.v[k] - mean);
      total += g;
    }
  }
  const float projection = block_sum(dot) * rstd / count;
  const float shift = a.norm.layer_norm ? block_sum(total) / count : 0.0f;
  for (int64_t j = threadIdx.x * kPack; j < cols; j += blockDim.x * kPack) {
    const int64_t left = cols - j;
    const Pack grad = load_pack(dy + j, left, aligned);
    const Pack value = load_pack(x + j, left, aligned);
    const Pack scale = load_pack(weight + j, left, aligned);
    Pack out;
    for (int k = 0; k < kPack; ++k) {
      const float normalised = (value.v[k] - mean) * rstd;
      out.v[k] = rstd * (grad.v[k] * (scale.v[k] + offset) - normalised * projection - shift);
    }
    if (a.accumulate) {
      const Pack before = load_pack(dx + j, left, aligned);
      for (int k = 0; k < kPack; ++k) out.v[k] += before.v[k];
    }
    store_pack(dx + j, out, left, aligned);
  }
}

// partial [strips, cols] of sum dy xhat, and behind it of sum dy.
template <typename T>
__global__ void weight_kernel(NormBackward a, float* partial) {
  const int64_t cols = a.norm.cols;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float by_weight = 0, by_bias = 0;
  if (j < cols) {
    const int64_t step = static_cast<int64_t>(gridDim.y) * kColumnLanes;
    for (int64_t r = blockIdx.y * kColumnLanes + threadIdx.y; r < a.norm.rows; r += step) {
      const float grad = to_float(row_of<T>(a.dy, r)[j]);
      const float mean = a.norm.layer_norm ? a.mean[r] : 0.0f;
      by_weight += grad * (to_float(row_of<T>(a.x, r)[j]) - mean) * a.rstd[r];
      by_bias += grad;
    }
  }
  by_weight = lane_sum(by_weight);
  by_bias = lane_sum(by_bias);
  if (threadIdx.y != 0 || j >= cols) return;
  partial[blockIdx.y * cols + j] = by_weight;
  partial[(gridDim.y + blockIdx.y) * cols + j] = by_bias;
}

__global__ void add_columns_kernel(const float* partial, int64_t strips, int64_t cols, float* result) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= cols) return;
  float sum = 0;
  for (int64_t s = 0; s < strips; ++s) sum += partial[s * cols + j];
  result[j] += sum;
}

template <typename T>
void forward(const NormForward& a) {
  if (a.norm.rows == 0) return;
  const bool aligned = aligned_rows<T>(a.x.data, a.x.stride) && aligned_rows<T>(a.y.data, a.y.stride) &&
                       aligned_rows<T>(a.weight, 0) && aligned_rows<T>(a.bias, 0);
  const unsigned threads = row_threads(a.norm.cols, kMaxThreads);
  launch_kernel(forward_kernel<T>, static_cast<unsigned>(a.norm.rows), threads, a, aligned);
  check_launch("norm_forward");
}

template <typename T>
void backward(const NormBackward& a) {
  const auto [rows, cols] = std::pair(a.norm.rows, a.norm.cols);
  if (rows == 0) return;
  // First, because dx may be dy.
  if (a.dweight != nullptr || a.dbias != nullptr) {
    const int64_t strips = column_strips(rows, kMaxStrips);
    const c10::DataPtr memory = scratch(2 * strips * cols);
    auto* partial = static_cast<float*>(memory.get());
    const dim3 grid(static_cast<unsigned>(ceil_div(cols, kWarp)), static_cast<unsigned>(strips));
    launch_kernel(weight_kernel<T>, grid, dim3(kWarp, kColumnLanes), a, partial);
    check_launch("norm_backward");
    if (a.dweight != nullptr) add_columns(partial, strips, cols, a.dweight);
    if (a.dbias != nullptr) add_columns(partial + strips * cols, strips, cols, a.dbias);
  }
  const bool aligned = aligned_rows<T>(a.dy.data, a.dy.stride) && aligned_rows<T>(a.x.data, a.x.stride) &&
                       aligned_rows<T>(a.dx.data, a.dx.stride) && aligned_rows<T>(a.weight, 0);
  const unsigned threads = row_threads(cols, kMaxThreads);
  launch_kernel(backward_kernel<T>, static_cast<unsigned>(rows), threads, a, aligned);
  check_launch("norm_backward");
}

}  // namespace

void add_columns(const float* partial, int64_t strips, int64_t cols, float* result) {
  constexpr unsigned kThreads = 128;
  const auto blocks = static_cast<unsigned>(ceil_div(cols, kThreads));
  launch_kernel(add_columns_kernel, blocks, kThreads, partial, strips, cols, result);
  check_launch("add_columns");
}

const NormKernels norm_table = {{forward<float>, forward<BFloat16>}, {backward<float>, backward<BFloat16>}};

}  // namespace troupe::kernels::cuda
