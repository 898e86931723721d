// What goes into the gated delta rule, and its gradients.
#include "kernels/cpu/gated_delta_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

constexpr float kLengthEps = 1e-6f;  // of the squared length of q and k

TROUPE_INLINE float sigmoid(float x) {
  return 1.0f / (1.0f + __builtin_expf(-x));
}

template <typename T>
TROUPE_INLINE float inverse_length(const T* x, int64_t dim) {
  const float squares = sum_of(dim, [&](int64_t i) {
    const float value = load(x + i);
    return value * value;
  });
  return 1.0f / __builtin_sqrtf(squares + kLengthEps);
}

TROUPE_INLINE float query_scale(const DeltaShape& s) {
  return 1.0f / __builtin_sqrtf(static_cast<float>(s.key_dim));
}

template <typename T>
void inputs(const DeltaInputs& a) {
  const DeltaShape& s = a.shape;
  const int64_t keys = s.key_heads * s.key_dim, values = s.value_heads * s.value_dim;
  const T* a_log = static_cast<const T*>(a.a_log);
  const T* dt_bias = static_cast<const T*>(a.dt_bias);
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x.data) + r * a.x.stride;
    float* out = a.prepared + r * (2 * keys + values);
    for (int64_t head = 0; head < 2 * s.key_heads; ++head) {
      const T* from = x + head * s.key_dim;
      float* to = out + head * s.key_dim;
      const float scale = inverse_length(from, s.key_dim) * (head < s.key_heads ? query_scale(s) : 1.0f);
#pragma omp simd
      for (int64_t i = 0; i < s.key_dim; ++i) to[i] = load(from + i) * scale;
    }
#pragma omp simd
    for (int64_t i = 0; i < values; ++i) out[2 * keys + i] = load(x + 2 * keys + i);
    const T* b = static_cast<const T*>(a.b.data) + r * a.b.stride;
    const T* step = static_cast<const T*>(a.a.data) + r * a.a.stride;
    for (int64_t h = 0; h < s.value_heads; ++h) {
      a.beta[r * s.value_heads + h] = a.beta_scale * sigmoid(load(b + h));
      a.decay[r * s.value_heads + h] =
          __builtin_expf(-__builtin_expf(load(a_log + h)) * softplus(load(step + h) + load(dt_bias + h)));
    }
  }
}

// A vector n = x r of length one: dx = r (dn - n (n dn)).
template <typename T>
void inputs_backward(const DeltaInputsBackward& a) {
  const DeltaShape& s = a.shape;
  const int64_t keys = s.key_heads * s.key_dim, values = s.value_heads * s.value_dim;
  const T* a_log = static_cast<const T*>(a.a_log);
  const T* dt_bias = static_cast<const T*>(a.dt_bias);
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x.data) + r * a.x.stride;
    float* gradient = a.dprepared + r * (2 * keys + values);
    for (int64_t head = 0; head < 2 * s.key_heads; ++head) {
      const T* from = x + head * s.key_dim;
      float* d = gradient + head * s.key_dim;
      const float inverse = inverse_length(from, s.key_dim);
      const float scale = inverse * (head < s.key_heads ? query_scale(s) : 1.0f);
      const float along =
          sum_of(s.key_dim, [&](int64_t i) { return d[i] * load(from + i); }) * inverse * inverse;
#pragma omp simd
      for (int64_t i = 0; i < s.key_dim; ++i) d[i] = scale * (d[i] - load(from + i) * along);
    }
    const T* b = static_cast<const T*>(a.b.data) + r * a.b.stride;
    const T* step = static_cast<const T*>(a.a.data) + r * a.a.stride;
    T* db = static_cast<T*>(a.db.data) + r * a.db.stride;
    T* dstep = static_cast<T*>(a.da.data) + r * a.da.stride;
    for (int64_t h = 0; h < s.value_heads; ++h) {
      const float beta = sigmoid(load(b + h));
      store(db + h, a.beta_scale * a.dbeta[r * s.value_heads + h] * beta * (1.0f - beta));
      const float rate = -__builtin_expf(load(a_log + h));
      const float sum = load(step + h) + load(dt_bias + h);
      const float by_log = a.dlog_decay[r * s.value_heads + h];
      const float by_step = by_log * rate * sigmoid(sum);
      store(dstep + h, by_step);
      a.da_log[h] += by_log * rate * softplus(sum);
      a.ddt_bias[h] += by_step;
    }
  }
}

}  // namespace

extern const DeltaInputKernels delta_input_table;
const DeltaInputKernels delta_input_table = {{inputs<float>, inputs<BFloat16>},
                                             {inputs_backward<float>, inputs_backward<BFloat16>}};

}  // namespace troupe::kernels::TROUPE_ISA
