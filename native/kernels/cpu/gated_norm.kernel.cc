// RMSNorm of heads with a gate behind it or before it, forward and backward.
#include "kernels/cpu/gated_delta_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

TROUPE_INLINE float rstd_of(const GatedNorm& a, const float* x) {
  const float squares = sum_of(a.dim, [&](int64_t j) { return x[j] * x[j]; });
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(a.dim) + a.eps);
}

template <typename T>
void forward(const GatedNorm& a) {
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const float* x = a.x + (r * a.heads + h) * a.dim;
      const T* gate = static_cast<const T*>(a.gate.data) + r * a.gate.stride + h * a.dim;
      T* out = static_cast<T*>(a.out.data) + r * a.out.stride + h * a.dim;
      const float rstd = rstd_of(a, x);
#pragma omp simd
      for (int64_t j = 0; j < a.dim; ++j) {
        const float z = load(gate + j);
        store(out + j, load(weight + j) * (x[j] * rstd) * (z * vector_sigmoid(z)));
      }
    }
  }
}

// With n = x rstd, s = silu(z) and g = dout weight s: dx = rstd (g - n mean(g n)).
template <typename T>
void backward(const GatedNormBackward& b) {
  const GatedNorm& a = b.norm;
  const T* weight = static_cast<const T*>(a.weight);
  float* dweight = b.dweight;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const float* x = a.x + (r * a.heads + h) * a.dim;
      const T* gate = static_cast<const T*>(a.gate.data) + r * a.gate.stride + h * a.dim;
      const T* dout = static_cast<const T*>(b.dout.data) + r * b.dout.stride + h * a.dim;
      float* dx = b.dx + (r * a.heads + h) * a.dim;
      T* dgate = static_cast<T*>(b.dgate.data) + r * b.dgate.stride + h * a.dim;
      const float rstd = rstd_of(a, x);
      const float projection =
          sum_of(a.dim,
                 [&](int64_t j) {
                   const float z = load(gate + j);
                   return load(dout + j) * load(weight + j) * (z * vector_sigmoid(z)) * x[j];
                 }) *
          rstd / static_cast<float>(a.dim);
#pragma omp simd
      for (int64_t j = 0; j < a.dim; ++j) {
        const float z = load(gate + j), s = vector_sigmoid(z), silu = z * s;
        const float grad = load(dout + j), scale = load(weight + j), normalised = x[j] * rstd;
        dweight[j] += grad * normalised * silu;
        store(dgate + j, grad * scale * normalised * s * (1.0f + z * (1.0f - s)));
        dx[j] = rstd * (grad * scale * silu - normalised * projection);
      }
    }
  }
}

template <typename T>
TROUPE_INLINE float gated(const float* x, const T* gate, int64_t j) {
  const float z = load(gate + j);
  return x[j] * (z * vector_sigmoid(z));
}

template <typename T>
TROUPE_INLINE float gated_rstd(const GatedNorm& a, const float* x, const T* gate) {
  const float squares = sum_of(a.dim, [&](int64_t j) {
    const float y = gated(x, gate, j);
    return y * y;
  });
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(a.dim) + a.eps);
}

template <typename T>
void forward_gate_first(const GatedNorm& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const float* x = a.x + (r * a.heads + h) * a.dim;
      const T* gate = static_cast<const T*>(a.gate.data) + r * a.gate.stride + h * a.dim;
      const T* weight = static_cast<const T*>(a.weight) + h * a.dim;
      T* out = static_cast<T*>(a.out.data) + r * a.out.stride + h * a.dim;
      const float rstd = gated_rstd(a, x, gate);
#pragma omp simd
      for (int64_t j = 0; j < a.dim; ++j) store(out + j, load(weight + j) * (gated(x, gate, j) * rstd));
    }
  }
}

// With y = x silu(z), n = y rstd and g = dout weight: dy = rstd (g - n mean(g n)).
template <typename T>
void backward_gate_first(const GatedNormBackward& b) {
  const GatedNorm& a = b.norm;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const float* x = a.x + (r * a.heads + h) * a.dim;
      const T* gate = static_cast<const T*>(a.gate.data) + r * a.gate.stride + h * a.dim;
      const T* weight = static_cast<const T*>(a.weight) + h * a.dim;
      const T* dout = static_cast<const T*>(b.dout.data) + r * b.dout.stride + h * a.dim;
      float* dx = b.dx + (r * a.heads + h) * a.dim;
      float* dweight = b.dweight + h * a.dim;
      T* dgate = static_cast<T*>(b.dgate.data) + r * b.dgate.stride + h * a.dim;
      const float rstd = gated_rstd(a, x, gate);
      const float projection =
          sum_of(a.dim, [&](int64_t j) { return load(dout + j) * load(weight + j) * gated(x, gate, j); }) *
          rstd / static_cast<float>(a.dim);
#pragma omp simd
      for (int64_t j = 0; j < a.dim; ++j) {
        const float z = load(gate + j), s = vector_sigmoid(z), silu = z * s;
        const float normalised = x[j] * silu * rstd, grad = load(dout + j);
        const float dy = rstd * (grad * load(weight + j) - normalised * projection);
        dweight[j] += grad * normalised;
        store(dgate + j, dy * x[j] * s * (1.0f + z * (1.0f - s)));
        dx[j] = dy * silu;
      }
    }
  }
}

template <typename T>
void forward_either(const GatedNorm& a) {
  a.gate_first ? forward_gate_first<T>(a) : forward<T>(a);
}
template <typename T>
void backward_either(const GatedNormBackward& b) {
  b.norm.gate_first ? backward_gate_first<T>(b) : backward<T>(b);
}

}  // namespace

extern const GatedNormKernels gated_norm_table;
const GatedNormKernels gated_norm_table = {{forward_either<float>, forward_either<BFloat16>},
                                           {backward_either<float>, backward_either<BFloat16>}};

}  // namespace troupe::kernels::TROUPE_ISA
