// exp, log and tanh in loops that the compiler vectorises.
#pragma once

#include <cstdint>

// Scalar functions that the compiler inlines into loops and vectorises: no branches, no calls, no
// tables. Only for *.kernel.cc: everything lives in the namespace of one instruction set and has
// internal linkage, so that no copy compiled for a newer processor can serve an older one.
#define TROUPE_INLINE static inline __attribute__((always_inline))

namespace troupe::kernels::TROUPE_ISA {

struct BFloat16 {
  uint16_t bits;
};

TROUPE_INLINE float float_from_bits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
TROUPE_INLINE uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}

TROUPE_INLINE float load(const float* p) {
  return *p;
}
TROUPE_INLINE float load(const BFloat16* p) {
  return float_from_bits(static_cast<uint32_t>(p->bits) << 16);
}

TROUPE_INLINE void store(float* p, float x) {
  *p = x;
}
// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
TROUPE_INLINE void store(BFloat16* p, float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  p->bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// e^x = 2^n e^r, where x = n ln 2 + r with |r| <= ln 2 / 2 (Cody & Waite: ln 2 in two parts, n times the
// first is exact), and e^r = 1 + r + r^2 P(r), P a minimax polynomial (relative error 3e-9).
struct ReducedExp {
  float power;  // e^r
  int32_t n;
};
TROUPE_INLINE ReducedExp reduced_exp(float x) {
  const float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
  const float shifted = x * 1.44269504f + to_integer;
  const float n = shifted - to_integer;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.38145965e-3f;
  p = p * r + 8.36871751e-3f;
  p = p * r + 4.16683890e-2f;
  p = p * r + 1.66665211e-1f;
  p = p * r + 4.99999940e-1f;
  return {(p * (r * r) + r) + 1.0f, static_cast<int32_t>(bits_of(shifted) - 0x4b400000u)};
}

// e^x within 1 ulp (2 where the result is subnormal); -inf gives 0, overflow +inf, NaN stays NaN.
TROUPE_INLINE float vector_exp(float x) {
  x = x < -105.0f ? -105.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const ReducedExp e = reduced_exp(x);
  // 2^n as a product of two factors: n spans [-152, 129], more than one exponent field holds.
  const int32_t half = e.n >> 1;
  const float first = float_from_bits(static_cast<uint32_t>(half + 127) << 23);
  const float second = float_from_bits(static_cast<uint32_t>(e.n - half + 127) << 23);
  return e.power * first * second;
}

// The bits of vector_exp for x in [-87, 88], in fewer steps; 0 below, NaN stays NaN. For probabilities, where
// e^-87 is nothing beside the largest.
TROUPE_INLINE float vector_exp_of_scores(float x) {
  const ReducedExp e = reduced_exp(x);
  const float result = e.power * float_from_bits(static_cast<uint32_t>(e.n + 127) << 23);
  return x < -87.0f ? 0.0f : result;
}

// 1 / (1 + e^-x)
TROUPE_INLINE float vector_sigmoid(float x) {
  return 1.0f / (1.0f + vector_exp(-x));
}

// log(1 + e^x), from 20 on x itself, as in LibTorch; of single numbers, by the library's functions.
TROUPE_INLINE float softplus(float x) {
  return x > 20.0f ? x : __builtin_log1pf(__builtin_expf(x));
}

// tanh x within 3 ulp: an odd polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel.
TROUPE_INLINE float vector_tanh(float x) {
  const float magnitude = __builtin_fabsf(x);
  const float z = x * x;
  float p = -5.71703678e-3f;
  p = p * z + 2.06505786e-2f;
  p = p * z - 5.37434965e-2f;
  p = p * z + 1.33314908e-1f;
  p = p * z - 3.33332837e-1f;
  const float near_zero = p * (z * magnitude) + magnitude;
  const float elsewhere = 1.0f - 2.0f / (vector_exp(2.0f * magnitude) + 1.0f);
  return __builtin_copysignf(magnitude < 0.625f ? near_zero : elsewhere, x);
}

// The standard normal distribution at x: cumulative probability and density (x^2 / 2 in e^ is shared).
// cdf(-t) = e^(-t^2/2) s P(s) with s = 1 / (1 + 0.35 t), t = |x|: P fits erfcx(t / sqrt 2) / 2s with
// a relative error of 5e-8.
struct Normal {
  float cdf, density;
};
TROUPE_INLINE Normal vector_normal(float x) {
  const float t = __builtin_fabsf(x);
  const float s = 1.0f / (1.0f + 0.35f * t);
  float p = -2.85310466e-2f;
  p = p * s + 1.41272232e-1f;
  p = p * s - 2.50737697e-1f;
  p = p * s + 1.54166535e-1f;
  p = p * s - 2.01179385e-2f;
  p = p * s + 1.04427591e-1f;
  p = p * s + 1.20061696e-1f;
  p = p * s + 1.39836043e-1f;
  p = p * s + 1.39622584e-1f;
  const float e = vector_exp(-0.5f * x * x);
  const float tail = e * (p * s);
  return {x < 0.0f ? tail : 1.0f - tail, 0.398942280f * e};
}

// Sum of term(0..n-1) over four interleaved quarters: four independent chains hide the latency of
// the additions. The order depends on n alone.
template <typename Term>
TROUPE_INLINE float sum_of(int64_t n, Term term) {
  const int64_t quarter = n / 4;
  float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
  for (int64_t i = 0; i < quarter; ++i) {
    s0 += term(i);
    s1 += term(i + quarter);
    s2 += term(i + 2 * quarter);
    s3 += term(i + 3 * quarter);
  }
  for (int64_t i = 4 * quarter; i < n; ++i) s0 += term(i);
  return (s0 + s1) + (s2 + s3);
}

// The same over one chain, with less to add up at the end: for a few dozen float32 terms.
template <typename Term>
TROUPE_INLINE float short_sum_of(int64_t n, Term term) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += term(i);
  return sum;
}

}  // namespace troupe::kernels::TROUPE_ISA
