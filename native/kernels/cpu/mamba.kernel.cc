// What goes into the scan of Mamba 2 and what is added behind it, forward and backward.
#include "kernels/cpu/gated_delta_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

template <typename T>
void inputs(const MambaInputs& a) {
  const T* a_log = static_cast<const T*>(a.a_log);
  const T* dt_bias = static_cast<const T*>(a.dt_bias);
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x.data) + r * a.x.stride;
    const T* dt = static_cast<const T*>(a.dt.data) + r * a.dt.stride;
    float* out = a.prepared + r * a.cols;
#pragma omp simd
    for (int64_t i = 0; i < a.cols; ++i) out[i] = load(x + i);
    for (int64_t h = 0; h < a.heads; ++h) {
      const float step = softplus(load(dt + h) + load(dt_bias + h));
      const float taken = step < a.least ? a.least : step;
      a.beta[r * a.heads + h] = taken;
      a.decay[r * a.heads + h] = __builtin_expf(-__builtin_expf(load(a_log + h)) * taken);
    }
  }
}

// At the least step itself the gradient passes, as through LibTorch's clamp.
template <typename T>
void inputs_backward(const MambaInputsBackward& a) {
  const T* a_log = static_cast<const T*>(a.a_log);
  const T* dt_bias = static_cast<const T*>(a.dt_bias);
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* dt = static_cast<const T*>(a.dt.data) + r * a.dt.stride;
    T* ddt = static_cast<T*>(a.ddt.data) + r * a.ddt.stride;
    for (int64_t h = 0; h < a.heads; ++h) {
      const float sum = load(dt + h) + load(dt_bias + h), step = softplus(sum);
      const float rate = -__builtin_expf(load(a_log + h)), by_log = a.dlog_decay[r * a.heads + h];
      const float slope = step < a.least ? 0.0f : 1.0f / (1.0f + __builtin_expf(-sum));
      const float by_sum = (a.dbeta[r * a.heads + h] + by_log * rate) * slope;
      store(ddt + h, by_sum);
      a.da_log[h] += by_log * rate * (step < a.least ? a.least : step);
      a.ddt_bias[h] += by_sum;
    }
  }
}

template <typename T>
void skip(const MambaSkip& a) {
  const T* factors = static_cast<const T*>(a.skip);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const float factor = load(factors + h);
      const float* v = a.v + r * a.v_stride + h * a.dim;
      float* out = a.out + (r * a.heads + h) * a.dim;
#pragma omp simd
      for (int64_t j = 0; j < a.dim; ++j) out[j] += factor * v[j];
    }
  }
}

template <typename T>
void skip_backward(const MambaSkipBackward& b) {
  const MambaSkip& a = b.forward;
  const T* factors = static_cast<const T*>(a.skip);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const float factor = load(factors + h);
      const float* v = a.v + r * a.v_stride + h * a.dim;
      const float* dout = b.dout + (r * a.heads + h) * a.dim;
      float* dv = b.dv + r * b.dv_stride + h * a.dim;
      b.dskip[h] += sum_of(a.dim, [&](int64_t j) { return dout[j] * v[j]; });
#pragma omp simd
      for (int64_t j = 0; j < a.dim; ++j) dv[j] += factor * dout[j];
    }
  }
}

}  // namespace

extern const MambaKernels mamba_table;
const MambaKernels mamba_table = {{inputs<float>, inputs<BFloat16>},
                                  {inputs_backward<float>, inputs_backward<BFloat16>},
                                  {skip<float>, skip<BFloat16>},
                                  {skip_backward<float>, skip_backward<BFloat16>}};

}  // namespace troupe::kernels::TROUPE_ISA
