// Gated and plain activations, forward and backward.
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vector_math.h"

// act(gate) * up, or act(x), over rows.
namespace troupe::kernels::TROUPE_ISA {

namespace {

struct ValueSlope {
  float value, slope;
};

struct Silu {
  static inline __attribute__((always_inline)) float value(float x) { return x / (1.0f + vector_exp(-x)); }
  static inline __attribute__((always_inline)) ValueSlope both(float x) {
    const float s = vector_sigmoid(x);
    const float y = x * s;
    return {y, s + y * (1.0f - s)};
  }
};

struct Gelu {
  static inline __attribute__((always_inline)) float value(float x) { return x * vector_normal(x).cdf; }
  static inline __attribute__((always_inline)) ValueSlope both(float x) {
    const Normal normal = vector_normal(x);
    return {x * normal.cdf, normal.cdf + x * normal.density};
  }
};

// 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr float kLinear = 1.59576912f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.0713548163f;
  static inline __attribute__((always_inline)) float value(float x) {
    return x / (1.0f + vector_exp(-x * (kLinear + kCubic * x * x)));
  }
  static inline __attribute__((always_inline)) ValueSlope both(float x) {
    const float s = vector_sigmoid(x * (kLinear + kCubic * x * x));
    const float y = x * s;
    return {y, s + y * (1.0f - s) * (kLinear + 3.0f * kCubic * x * x)};
  }
};

// x sigmoid(1.702 x) (Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2).
struct QuickGelu {
  static inline __attribute__((always_inline)) float value(float x) {
    return x / (1.0f + vector_exp(-kQuickGeluSlope * x));
  }
  static inline __attribute__((always_inline)) ValueSlope both(float x) {
    const float s = vector_sigmoid(kQuickGeluSlope * x);
    const float y = x * s;
    return {y, s + kQuickGeluSlope * y * (1.0f - s)};
  }
};

// relu'(0) = 0, as in LibTorch; a NaN passes.
struct Relu {
  static inline __attribute__((always_inline)) float value(float x) { return x < 0.0f ? 0.0f : x; }
  static inline __attribute__((always_inline)) ValueSlope both(float x) {
    return {value(x), x <= 0.0f ? 0.0f : 1.0f};
  }
};

struct SquaredRelu {
  static inline __attribute__((always_inline)) float value(float x) {
    const float y = Relu::value(x);
    return y * y;
  }
  static inline __attribute__((always_inline)) ValueSlope both(float x) {
    const float y = Relu::value(x);
    return {y * y, 2.0f * y};
  }
};

// Of gates and routers, whose rows must not round as their place in a tensor has it: LibTorch's does.
struct Sigmoid {
  static inline __attribute__((always_inline)) float value(float x) { return vector_sigmoid(x); }
  static inline __attribute__((always_inline)) ValueSlope both(float x) {
    const float s = vector_sigmoid(x);
    return {s, s * (1.0f - s)};
  }
};

// Of the clamped SwiGLU: x sigmoid(1.702 x) up to the limit, and the factor beside it. A NaN passes; at a
// limit the gradient does, as in LibTorch.
struct ClampedGate {
  static inline __attribute__((always_inline)) float value(float x) {
    const float g = x > kSwigluLimit ? kSwigluLimit : x;
    return g / (1.0f + vector_exp(-kSwigluSlope * g));
  }
  static inline __attribute__((always_inline)) ValueSlope both(float x) {
    const float g = x > kSwigluLimit ? kSwigluLimit : x;
    const float s = vector_sigmoid(kSwigluSlope * g);
    const float y = g * s;
    return {y, x > kSwigluLimit ? 0.0f : s + kSwigluSlope * y * (1.0f - s)};
  }
  static inline __attribute__((always_inline)) ValueSlope up(float x) {
    const float below = x > kSwigluLimit ? kSwigluLimit : x;
    const float within = below < -kSwigluLimit ? -kSwigluLimit : below;
    return {within + 1.0f, x > kSwigluLimit || x < -kSwigluLimit ? 0.0f : 1.0f};
  }
};

// Pairs of gate and up side by side.
template <typename T>
void forward_pairs(const ActivationForward& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x.data) + r * a.x.stride;
    T* out = static_cast<T*>(a.out.data) + r * a.out.stride;
#pragma omp simd
    for (int64_t j = 0; j < a.cols; ++j)
      store(out + j, ClampedGate::value(load(x + 2 * j)) * ClampedGate::up(load(x + 2 * j + 1)).value);
  }
}

template <typename T, bool kOut>
void backward_pairs(const ActivationBackward& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* dout = static_cast<const T*>(a.dout.data) + r * a.dout.stride;
    const T* x = static_cast<const T*>(a.x.data) + r * a.x.stride;
    T* dx = static_cast<T*>(a.dx.data) + r * a.dx.stride;
    T* out = kOut ? static_cast<T*>(a.out.data) + r * a.out.stride : nullptr;
#pragma omp simd
    for (int64_t j = 0; j < a.cols; ++j) {
      const float grad = load(dout + j);
      const ValueSlope gate = ClampedGate::both(load(x + 2 * j)), up = ClampedGate::up(load(x + 2 * j + 1));
      store(dx + 2 * j, grad * up.value * gate.slope);
      store(dx + 2 * j + 1, grad * gate.value * up.slope);
      if (kOut) store(out + j, gate.value * up.value);
    }
  }
}

template <typename T, typename Act>
void forward_rows(const ActivationForward& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x.data) + r * a.x.stride;
    T* out = static_cast<T*>(a.out.data) + r * a.out.stride;
    if (a.gated) {
      const T* up = x + a.cols;
#pragma omp simd
      for (int64_t j = 0; j < a.cols; ++j) store(out + j, Act::value(load(x + j)) * load(up + j));
    } else {
#pragma omp simd
      for (int64_t j = 0; j < a.cols; ++j) store(out + j, Act::value(load(x + j)));
    }
  }
}

template <typename T, typename Act, bool kGated, bool kOut>
void backward_rows(const ActivationBackward& a) {
  const int64_t cols = a.cols;
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* dout = static_cast<const T*>(a.dout.data) + r * a.dout.stride;
    const T* x = static_cast<const T*>(a.x.data) + r * a.x.stride;
    T* dx = static_cast<T*>(a.dx.data) + r * a.dx.stride;
    T* out = kOut ? static_cast<T*>(a.out.data) + r * a.out.stride : nullptr;
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) {
      const float grad = load(dout + j);
      const ValueSlope act = Act::both(load(x + j));
      if (kGated) {
        const float up = load(x + cols + j);
        store(dx + j, grad * up * act.slope);
        store(dx + cols + j, grad * act.value);
        if (kOut) store(out + j, act.value * up);
      } else {
        store(dx + j, grad * act.slope);
        if (kOut) store(out + j, act.value);
      }
    }
  }
}

template <typename T, typename Act>
void backward_kind(const ActivationBackward& a) {
  const bool out = a.out.data != nullptr;
  if (a.gated) {
    out ? backward_rows<T, Act, true, true>(a) : backward_rows<T, Act, true, false>(a);
  } else {
    out ? backward_rows<T, Act, false, true>(a) : backward_rows<T, Act, false, false>(a);
  }
}

template <typename T>
void forward(const ActivationForward& a) {
  switch (a.kind) {
    case kSiluId: return forward_rows<T, Silu>(a);
    case kGeluId: return forward_rows<T, Gelu>(a);
    case kGeluTanhId: return forward_rows<T, GeluTanh>(a);
    case kQuickGeluId: return forward_rows<T, QuickGelu>(a);
    case kReluId: return forward_rows<T, Relu>(a);
    case kSquaredReluId: return forward_rows<T, SquaredRelu>(a);
    case kSigmoidId: return forward_rows<T, Sigmoid>(a);
    case kClampedSwigluId: return forward_pairs<T>(a);
  }
}

template <typename T>
void backward(const ActivationBackward& a) {
  switch (a.kind) {
    case kSiluId: return backward_kind<T, Silu>(a);
    case kGeluId: return backward_kind<T, Gelu>(a);
    case kGeluTanhId: return backward_kind<T, GeluTanh>(a);
    case kQuickGeluId: return backward_kind<T, QuickGelu>(a);
    case kReluId: return backward_kind<T, Relu>(a);
    case kSquaredReluId: return backward_kind<T, SquaredRelu>(a);
    case kSigmoidId: return backward_kind<T, Sigmoid>(a);
    case kClampedSwigluId:
      return a.out.data != nullptr ? backward_pairs<T, true>(a) : backward_pairs<T, false>(a);
  }
}

}  // namespace

extern const ActivationKernels activation_table;
const ActivationKernels activation_table = {{forward<float>, forward<BFloat16>},
                                            {backward<float>, backward<BFloat16>}};

}  // namespace troupe::kernels::TROUPE_ISA
