// xIELU, forward and backward.
#include "kernels/cpu/row_access.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

TROUPE_INLINE float rounded(const float*, float x) {
  return x;
}
TROUPE_INLINE float rounded(const BFloat16*, float x) {
  BFloat16 bits;
  store(&bits, x);
  return load(&bits);
}

struct Scalars {
  float p, n, beta, eps;
};

template <typename T>
TROUPE_INLINE Scalars scalars_of(const XieluArgs& a) {
  const T* alpha_p = static_cast<const T*>(a.alpha_p);
  const T* alpha_n = static_cast<const T*>(a.alpha_n);
  return {rounded(alpha_p, softplus(load(alpha_p))), rounded(alpha_n, *a.beta + softplus(load(alpha_n))),
          *a.beta, *a.eps};
}

// e^x - 1 - x for x < 0: near 0, where that cancels, its series.
TROUPE_INLINE float bend_of(float x) {
  float p = 2.75573192e-7f;  // 1 / 10!
  p = p * x + 2.75573192e-6f;
  p = p * x + 2.48015873e-5f;
  p = p * x + 1.98412698e-4f;
  p = p * x + 1.38888889e-3f;
  p = p * x + 8.33333333e-3f;
  p = p * x + 4.16666667e-2f;
  p = p * x + 1.66666667e-1f;
  p = p * x + 0.5f;
  return x > -0.75f ? p * (x * x) : vector_exp(x) - 1.0f - x;
}

struct Point {
  float value, slope;
  float by_p, by_n;  // gradients of the value
};

TROUPE_INLINE Point point_of(const Scalars& s, float x) {
  const float low = x < s.eps ? x : s.eps;
  const float bend = bend_of(low);
  const float curve = bend + (low - x);
  const float square = x * x;
  const bool positive = x > 0.0f;
  const float grown = x < s.eps ? bend + x : -1.0f;  // e^x - 1
  return {(positive ? s.p * square : s.n * curve) + s.beta * x,
          (positive ? 2.0f * s.p * x : s.n * grown) + s.beta, positive ? square : 0.0f,
          positive ? 0.0f : curve};
}

template <typename T>
void forward(const XieluForward& f) {
  const Scalars s = scalars_of<T>(f.xielu);
  for (int64_t r = 0; r < f.xielu.rows; ++r) {
    const T* x = row_of<T>(f.xielu.x, r);
    T* out = row_of<T>(f.out, r);
#pragma omp simd
    for (int64_t j = 0; j < f.xielu.cols; ++j) store(out + j, point_of(s, load(x + j)).value);
  }
}

template <typename T, bool kOut, bool kSums>
void backward_rows(const XieluBackward& b) {
  const Scalars s = scalars_of<T>(b.xielu);
  for (int64_t r = 0; r < b.xielu.rows; ++r) {
    const T* dout = row_of<T>(b.dout, r);
    const T* x = row_of<T>(b.xielu.x, r);
    T* dx = row_of<T>(b.dx, r);
    T* out = kOut ? row_of<T>(b.out, r) : nullptr;
    float by_p = 0, by_n = 0;
#pragma omp simd reduction(+ : by_p, by_n)
    for (int64_t j = 0; j < b.xielu.cols; ++j) {
      const float grad = load(dout + j);
      const Point point = point_of(s, load(x + j));
      store(dx + j, grad * point.slope);
      if (kOut) store(out + j, point.value);
      if (kSums) {
        by_p += grad * point.by_p;
        by_n += grad * point.by_n;
      }
    }
    if (!kSums) continue;
    float* sums = row_of<float>(b.sums, r);
    sums[0] = by_p;
    sums[1] = by_n;
  }
}

template <typename T>
void backward(const XieluBackward& b) {
  const bool sums = b.sums.data != nullptr;
  if (b.out.data != nullptr) {
    sums ? backward_rows<T, true, true>(b) : backward_rows<T, true, false>(b);
  } else {
    sums ? backward_rows<T, false, true>(b) : backward_rows<T, false, false>(b);
  }
}

}  // namespace

extern const XieluKernels xielu_table;
const XieluKernels xielu_table = {{forward<float>, forward<BFloat16>}, {backward<float>, backward<BFloat16>}};

}  // namespace troupe::kernels::TROUPE_ISA
