// q/k norm and rotary positions on a GPU.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tables.h"

// q/k RMSNorm and rotary embedding in place, one warp per row and head: a lane reads and writes both halves
// of its pairs, so nothing is overwritten that another lane still needs. Formulas: cpu/rotary.kernel.cc.
namespace troupe::kernels::cuda {

namespace {

constexpr int kWarpsPerBlock = 8;
constexpr int64_t kMaxStrips = 256;

struct Pair {
  float low, high;
};

// The row, the head and the arrays of one warp.
template <typename T>
struct Head {
  int64_t row, head, dim, half;
  bool is_query;
  const T* weight;
  const float* cos;
  const float* sin;

  __device__ Head(const RotaryArgs& a, int64_t row, int64_t head) : row(row), head(head), dim(a.head_dim) {
    half = a.rotary_dim / 2;
    is_query = head < a.q_heads;
    weight = static_cast<const T*>(is_query ? a.q_weight : a.k_weight);
    const int64_t position = half > 0 ? a.positions[row] : 0;
    cos = a.cos + position * half;
    sin = a.sin + position * half;
  }

  // Gradient by what was rotated: the rotation backwards.
  __device__ Pair rotated_back(const T* grad, int64_t i) const {
    const float low = to_float(grad[i]), high = to_float(grad[i + half]);
    return {low * cos[i] + high * sin[i], high * cos[i] - low * sin[i]};
  }
};

template <typename T>
__global__ void forward_kernel(RotaryForward a) {
  const int64_t heads = a.rotary.q_heads + a.rotary.k_heads;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  if (warp >= a.rotary.rows * heads) return;
  const int lane = threadIdx.x % kWarp;
  const Head<T> head(a.rotary, warp / heads, warp % heads);
  T* x = row_of<T>(a.qkv, head.row) + head.head * head.dim;
  float rstd = 1;
  if (a.rotary.qk_norm) {
    float squares = 0;
    for (int64_t i = lane; i < head.dim; i += kWarp) squares += to_float(x[i]) * to_float(x[i]);
    rstd = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(head.dim) + a.rotary.eps);
    if (a.rstd != nullptr && lane == 0) a.rstd[head.row * a.rotary.rstd_stride + head.head] = rstd;
  }
  const auto scaled = [&](int64_t i) {
    const float value = to_float(x[i]);
    return a.rotary.qk_norm ? value * rstd * (to_float(head.weight[i]) + a.rotary.weight_offset) : value;
  };
  for (int64_t i = lane; i < head.half; i += kWarp) {
    const float low = scaled(i), high = scaled(i + head.half);
    store(x + i, low * head.cos[i] - high * head.sin[i]);
    store(x + i + head.half, high * head.cos[i] + low * head.sin[i]);
  }
  if (!a.rotary.qk_norm) return;
  for (int64_t i = 2 * head.half + lane; i < head.dim; i += kWarp) store(x + i, scaled(i));
}

template <typename T>
__global__ void backward_kernel(RotaryBackward a) {
  const int64_t heads = a.rotary.q_heads + a.rotary.k_heads;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  if (warp >= a.rotary.rows * heads) return;
  const int lane = threadIdx.x % kWarp;
  const Head<T> head(a.rotary, warp / heads, warp % heads);
  T* grad = row_of<T>(a.dqkv, head.row) + head.head * head.dim;
  if (!a.rotary.qk_norm) {
    for (int64_t i = lane; i < head.half; i += kWarp) {
      const Pair g = head.rotated_back(grad, i);
      store(grad + i, g.low);
      store(grad + i + head.half, g.high);
    }
    return;
  }
  // With w = weight + offset and xhat = x rstd: dx = rstd (g w - xhat mean(g w xhat)).
  const T* pre = row_of<T>(a.qkv_pre, head.row) + head.head * head.dim;
  const float rstd = a.rstd[head.row * a.rotary.rstd_stride + head.head];
  const auto scale = [&](int64_t i) { return to_float(head.weight[i]) + a.rotary.weight_offset; };
  const auto normalised = [&](int64_t i) { return to_float(pre[i]) * rstd; };
  float dot = 0;
  const int64_t rest = 2 * head.half + lane;  // what does not turn
  for (int64_t i = lane; i < head.half; i += kWarp) {
    const Pair g = head.rotated_back(grad, i);
    const int64_t j = i + head.half;
    dot += g.low * scale(i) * normalised(i) + g.high * scale(j) * normalised(j);
  }
  for (int64_t i = rest; i < head.dim; i += kWarp) dot += to_float(grad[i]) * scale(i) * normalised(i);
  const float mean = warp_sum(dot) / static_cast<float>(head.dim);
  const auto write = [&](int64_t i, float g) {
    store(grad + i, rstd * (g * scale(i) - normalised(i) * mean));
  };
  for (int64_t i = lane; i < head.half; i += kWarp) {
    const Pair g = head.rotated_back(grad, i);
    write(i, g.low);
    write(i + head.half, g.high);
  }
  for (int64_t i = rest; i < head.dim; i += kWarp) write(i, to_float(grad[i]));
}

// partial [strips, head_dim] of sum g xhat over the rows and the heads [first_head, first_head + heads).
template <typename T>
__global__ void weight_kernel(RotaryBackward a, int64_t first_head, int64_t heads, float* partial) {
  const int64_t dim = a.rotary.head_dim;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (i < dim) {
    const int64_t step = static_cast<int64_t>(gridDim.y) * kColumnLanes;
    for (int64_t item = blockIdx.y * kColumnLanes + threadIdx.y; item < a.rotary.rows * heads; item += step) {
      const Head<T> head(a.rotary, item / heads, first_head + item % heads);
      const T* grad = row_of<T>(a.dqkv, head.row) + head.head * dim;
      float g = to_float(grad[i]);
      if (i < 2 * head.half) {
        g = i < head.half ? head.rotated_back(grad, i).low : head.rotated_back(grad, i - head.half).high;
      }
      const float rstd = a.rstd[head.row * a.rotary.rstd_stride + head.head];
      sum += g * to_float(row_of<T>(a.qkv_pre, head.row)[head.head * dim + i]) * rstd;
    }
  }
  sum = lane_sum(sum);
  if (threadIdx.y == 0 && i < dim) partial[blockIdx.y * dim + i] = sum;
}

unsigned blocks_for(const RotaryArgs& a) {
  return static_cast<unsigned>(ceil_div(a.rows * (a.q_heads + a.k_heads), kWarpsPerBlock));
}

template <typename T>
void forward(const RotaryForward& a) {
  if (a.rotary.rows == 0) return;
  launch_kernel(forward_kernel<T>, blocks_for(a.rotary), kWarpsPerBlock * kWarp, a);
  check_launch("qk_norm_rotary_forward");
}

template <typename T>
void add_weight_gradient(const RotaryBackward& a, int64_t first_head, int64_t heads, float* result) {
  if (result == nullptr) return;
  const int64_t dim = a.rotary.head_dim;
  const int64_t strips = column_strips(a.rotary.rows * heads, kMaxStrips);
  const c10::DataPtr memory = scratch(strips * dim);
  auto* partial = static_cast<float*>(memory.get());
  const dim3 grid(static_cast<unsigned>(ceil_div(dim, kWarp)), static_cast<unsigned>(strips));
  launch_kernel(weight_kernel<T>, grid, dim3(kWarp, kColumnLanes), a, first_head, heads, partial);
  check_launch("qk_norm_rotary_backward");
  add_columns(partial, strips, dim, result);
}

template <typename T>
void backward(const RotaryBackward& a) {
  if (a.rotary.rows == 0) return;
  // First: they need the gradient that the other kernel overwrites.
  if (a.rotary.qk_norm) {
    add_weight_gradient<T>(a, 0, a.rotary.q_heads, a.dq_weight);
    add_weight_gradient<T>(a, a.rotary.q_heads, a.rotary.k_heads, a.dk_weight);
  }
  launch_kernel(backward_kernel<T>, blocks_for(a.rotary), kWarpsPerBlock * kWarp, a);
  check_launch("qk_norm_rotary_backward");
}

}  // namespace

const RotaryKernels rotary_table = {{forward<float>, forward<BFloat16>},
                                    {backward<float>, backward<BFloat16>}};

}  // namespace troupe::kernels::cuda
