// bfloat16 as CUDA names it, by LibTorch's.
#pragma once

#include <c10/util/BFloat16.h>

#include <bit>
#include <cstdint>

#include "cuda_on_host/language.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 x) {
  return c10::detail::f32_from_bits(x.bits);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {c10::detail::round_to_nearest_even(x)};
}
inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) {
  return {bits};
}
inline float2 __bfloat1622float2(__nv_bfloat162 pair) {
  return {__bfloat162float(pair.x), __bfloat162float(pair.y)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
