// q/k norm and rotary positions, forward and backward.
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vector_math.h"

// RMSNorm of each query and key head, then rotary position embedding, in place on rows of q, k, v.
namespace troupe::kernels::TROUPE_ISA {

namespace {

// One head as float32, so that passes over it are as long as the processor's registers whatever T.
template <typename T>
TROUPE_INLINE void widen(const T* source, int64_t dim, float* target) {
#pragma omp simd
  for (int64_t j = 0; j < dim; ++j) target[j] = load(source + j);
}

// In place; returns rstd.
template <typename T>
float normalise(const RotaryArgs& a, float* head, const T* weight) {
  const int64_t dim = a.head_dim;
  const float offset = a.weight_offset;
  const float squares = short_sum_of(dim, [&](int64_t j) { return head[j] * head[j]; });
  const float rstd = 1.0f / __builtin_sqrtf(squares / static_cast<float>(dim) + a.eps);
#pragma omp simd
  for (int64_t j = 0; j < dim; ++j) head[j] = head[j] * rstd * (load(weight + j) + offset);
  return rstd;
}

// Both halves of what turns of a head by the same angles; `direction` -1 applies the transpose, which is the
// gradient (and the inverse but for the scale that yarn puts into the tables).
template <typename T>
void rotate(T* head, int64_t half, const float* cos, const float* sin, float direction) {
  T* low = head;
  T* high = head + half;
#pragma omp simd
  for (int64_t j = 0; j < half; ++j) {
    const float a = load(low + j);
    const float b = load(high + j);
    const float s = direction * sin[j];
    store(low + j, a * cos[j] - b * s);
    store(high + j, b * cos[j] + a * s);
  }
}

template <typename T>
void forward(const RotaryForward& args) {
  const RotaryArgs& a = args.rotary;
  const int64_t half = a.rotary_dim / 2;
  float head[kMaxHeadDim];
  for (int64_t r = 0; r < a.rows; ++r) {
    T* row = static_cast<T*>(args.qkv.data) + r * args.qkv.stride;
    const int64_t table = half > 0 ? a.positions[r] * half : 0;
    for (int64_t h = 0; h < a.q_heads + a.k_heads; ++h) {
      T* out = row + h * a.head_dim;
      if (!a.qk_norm) {
        rotate(out, half, a.cos + table, a.sin + table, 1.0f);
        continue;
      }
      widen(out, a.head_dim, head);
      const float rstd = normalise(a, head, static_cast<const T*>(h < a.q_heads ? a.q_weight : a.k_weight));
      if (args.rstd != nullptr) args.rstd[r * a.rstd_stride + h] = rstd;
      if (half > 0) rotate(head, half, a.cos + table, a.sin + table, 1.0f);
#pragma omp simd
      for (int64_t j = 0; j < a.head_dim; ++j) store(out + j, head[j]);
    }
  }
}

// grad: by the normalised head, x: the head before. dx = gradient by x.
template <typename T>
void normalise_backward(const RotaryArgs& a, const float* grad, const float* x, float rstd, const T* weight,
                        float* dweight, T* dx) {
  const int64_t dim = a.head_dim;
  const float offset = a.weight_offset;
  const float products =
      short_sum_of(dim, [&](int64_t j) { return grad[j] * (load(weight + j) + offset) * x[j]; });
  const float projection = products * rstd / static_cast<float>(dim);
  if (dweight != nullptr) {
#pragma omp simd
    for (int64_t j = 0; j < dim; ++j) dweight[j] += grad[j] * (x[j] * rstd);
  }
#pragma omp simd
  for (int64_t j = 0; j < dim; ++j) {
    store(dx + j, rstd * (grad[j] * (load(weight + j) + offset) - x[j] * rstd * projection));
  }
}

template <typename T>
void backward(const RotaryBackward& args) {
  const RotaryArgs& a = args.rotary;
  const int64_t half = a.rotary_dim / 2;
  float grad[kMaxHeadDim];
  float x[kMaxHeadDim];
  for (int64_t r = 0; r < a.rows; ++r) {
    T* row = static_cast<T*>(args.dqkv.data) + r * args.dqkv.stride;
    const T* pre = static_cast<const T*>(args.qkv_pre.data) + r * args.qkv_pre.stride;
    const int64_t table = half > 0 ? a.positions[r] * half : 0;
    for (int64_t h = 0; h < a.q_heads + a.k_heads; ++h) {
      const int64_t column = h * a.head_dim;
      if (!a.qk_norm) {
        rotate(row + column, half, a.cos + table, a.sin + table, -1.0f);
        continue;
      }
      widen(row + column, a.head_dim, grad);
      widen(pre + column, a.head_dim, x);
      if (half > 0) rotate(grad, half, a.cos + table, a.sin + table, -1.0f);
      const bool is_query = h < a.q_heads;
      normalise_backward(a, grad, x, args.rstd[r * a.rstd_stride + h],
                         static_cast<const T*>(is_query ? a.q_weight : a.k_weight),
                         is_query ? args.dq_weight : args.dk_weight, row + column);
    }
  }
}

}  // namespace

extern const RotaryKernels rotary_table;
const RotaryKernels rotary_table = {{forward<float>, forward<BFloat16>},
                                    {backward<float>, backward<BFloat16>}};

}  // namespace troupe::kernels::TROUPE_ISA
