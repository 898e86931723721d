// xIELU on a GPU.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tables.h"

// The formulas are those of cpu/xielu.kernel.cc.
namespace troupe::kernels::cuda {

namespace {

constexpr int64_t kMaxThreads = 512;
constexpr int64_t kMaxParts = 64;  // blocks that share a row of a forward pass

__device__ float rounded(float, float x) {
  return x;
}
__device__ float rounded(BFloat16, float x) {
  return to_float(__float2bfloat16_rn(x));
}

__device__ float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

struct Scalars {
  float p, n, beta, eps;
};

template <typename T>
__device__ Scalars scalars_of(const XieluArgs& a) {
  const T alpha_p = *static_cast<const T*>(a.alpha_p), alpha_n = *static_cast<const T*>(a.alpha_n);
  return {rounded(alpha_p, softplus(to_float(alpha_p))),
          rounded(alpha_n, *a.beta + softplus(to_float(alpha_n))), *a.beta, *a.eps};
}

// e^x - 1 - x for x < 0: near 0, where that cancels, its series.
__device__ float bend_of(float x) {
  if (x <= -0.75f) return expf(x) - 1.0f - x;
  float p = 2.75573192e-7f;  // 1 / 10!
  p = p * x + 2.75573192e-6f;
  p = p * x + 2.48015873e-5f;
  p = p * x + 1.98412698e-4f;
  p = p * x + 1.38888889e-3f;
  p = p * x + 8.33333333e-3f;
  p = p * x + 4.16666667e-2f;
  p = p * x + 1.66666667e-1f;
  p = p * x + 0.5f;
  return p * (x * x);
}

struct Point {
  float value, slope;
  float by_p, by_n;  // gradients of the value
};

__device__ Point point_of(const Scalars& s, float x) {
  if (x > 0.0f) return {s.p * x * x + s.beta * x, 2.0f * s.p * x + s.beta, x * x, 0.0f};
  const float low = x < s.eps ? x : s.eps;
  const float bend = bend_of(low);
  const float curve = bend + (low - x);
  return {s.n * curve + s.beta * x, s.n * (x < s.eps ? bend + x : -1.0f) + s.beta, 0.0f, curve};
}

template <typename T>
__global__ void forward_kernel(XieluForward f, bool aligned) {
  const Scalars s = scalars_of<T>(f.xielu);
  const int64_t r = blockIdx.x, cols = f.xielu.cols;
  const T* x = row_of<T>(f.xielu.x, r);
  T* out = row_of<T>(f.out, r);
  const int64_t first = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.x * kPack;
  for (int64_t j = first * kPack; j < cols; j += step) {
    Pack value = load_pack(x + j, cols - j, aligned);
    for (int k = 0; k < kPack; ++k) value.v[k] = point_of(s, value.v[k]).value;
    store_pack(out + j, value, cols - j, aligned);
  }
}

// A row to a block. dx may be x: a thread reads what it overwrites first.
template <typename T>
__global__ void backward_kernel(XieluBackward b, bool aligned) {
  const Scalars s = scalars_of<T>(b.xielu);
  const int64_t r = blockIdx.x, cols = b.xielu.cols;
  const T* x = row_of<T>(b.xielu.x, r);
  const T* dout = row_of<T>(b.dout, r);
  T* dx = row_of<T>(b.dx, r);
  float by_p = 0, by_n = 0;
  for (int64_t j = threadIdx.x * kPack; j < cols; j += blockDim.x * kPack) {
    const int64_t left = cols - j;
    const Pack value = load_pack(x + j, left, aligned), grad = load_pack(dout + j, left, aligned);
    Pack by_x, out;
    for (int k = 0; k < kPack; ++k) {  // gradients are zero behind the row
      const Point point = point_of(s, value.v[k]);
      by_x.v[k] = grad.v[k] * point.slope;
      out.v[k] = point.value;
      by_p += grad.v[k] * point.by_p;
      by_n += grad.v[k] * point.by_n;
    }
    store_pack(dx + j, by_x, left, aligned);
    if (b.out.data != nullptr) store_pack(row_of<T>(b.out, r) + j, out, left, aligned);
  }
  if (b.sums.data == nullptr) return;
  by_p = block_sum(by_p);
  by_n = block_sum(by_n);
  if (threadIdx.x != 0) return;
  float* sums = row_of<float>(b.sums, r);
  sums[0] = by_p;
  sums[1] = by_n;
}

template <typename T>
void forward(const XieluForward& f) {
  const auto [rows, cols] = std::pair(f.xielu.rows, f.xielu.cols);
  if (rows == 0 || cols == 0) return;
  const bool aligned =
      aligned_rows<T>(f.xielu.x.data, f.xielu.x.stride) && aligned_rows<T>(f.out.data, f.out.stride);
  const unsigned threads = row_threads(cols, kMaxThreads);
  const int64_t parts = std::min(kMaxParts, ceil_div(cols, static_cast<int64_t>(threads) * kPack));
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(parts));
  launch_kernel(forward_kernel<T>, grid, threads, f, aligned);
  check_launch("xielu_forward");
}

template <typename T>
void backward(const XieluBackward& b) {
  const auto [rows, cols] = std::pair(b.xielu.rows, b.xielu.cols);
  if (rows == 0) return;
  const bool aligned = aligned_rows<T>(b.xielu.x.data, b.xielu.x.stride) &&
                       aligned_rows<T>(b.dout.data, b.dout.stride) &&
                       aligned_rows<T>(b.dx.data, b.dx.stride) && aligned_rows<T>(b.out.data, b.out.stride);
  launch_kernel(backward_kernel<T>, static_cast<unsigned>(rows), row_threads(cols, kMaxThreads), b, aligned);
  check_launch("xielu_backward");
}

}  // namespace

const XieluKernels xielu_table = {{forward<float>, forward<BFloat16>}, {backward<float>, backward<BFloat16>}};

}  // namespace troupe::kernels::cuda
