// Values of codes, a register of columns at a time.
#include "kernels/cpu/dequantize_kernels.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

typedef float Floats __attribute__((vector_size(kGemmLanes * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(kGemmLanes * 4), aligned(4), may_alias));
typedef int8_t Bytes __attribute__((vector_size(kGemmLanes), aligned(1), may_alias));
typedef int16_t Shorts __attribute__((vector_size(kGemmLanes * 2), aligned(1), may_alias));

// By reference: how a register goes through a call depends on the processor that is compiled for.
struct Int8 {
  // Of the low 8 bits, whatever lies above them.
  static void value(const Ints& codes, Floats& to) {
    to = __builtin_convertvector((codes << 24) >> 24, Floats);
  }
};

struct Fp8 {
  // e4m3 (Micikevicius et al. 2022, arXiv:2209.05433, section 3): exponent and mantissa in the places of a
  // float32's give its value by 2^(7 - 127), below the least normal number too. NaN is not among the codes of
  // a weight.
  static void value(const Ints& codes, Floats& to) {
    const Ints magnitude = (codes & 0x7f) << 20, sign = (codes & 0x80) << 24;
    const Floats scaled = reinterpret_cast<Floats>(magnitude) * 0x1p120f;
    to = reinterpret_cast<Floats>(reinterpret_cast<Ints>(scaled) | sign);
  }
};

// To bfloat16 in the upper half, ties to even.
inline void rounded(const Floats& values, Ints& to) {
  const Ints bits = reinterpret_cast<Ints>(values);
  to = bits + 0x7fff + ((bits >> 16) & 1);
}

template <typename Code>
void floats(int64_t steps, const uint8_t* codes, const float* scales, int64_t vectors, Word* target) {
  for (int64_t i = 0; i < steps; ++i) {
    for (int64_t v = 0; v < vectors; ++v, codes += kGemmLanes, target += kGemmLanes) {
      const Ints own = __builtin_convertvector(*reinterpret_cast<const Bytes*>(codes), Ints);
      const Floats scale = *reinterpret_cast<const Floats*>(scales + v * kGemmLanes);
      Floats value;
      Code::value(own, value);
      *reinterpret_cast<Floats*>(target) = value * scale;
    }
  }
}

template <typename Code>
void pairs(int64_t steps, const uint8_t* codes, const float* scales, int64_t vectors, Word* target) {
  for (int64_t i = 0; i < steps; ++i) {
    for (int64_t v = 0; v < vectors; ++v, codes += 2 * kGemmLanes, target += kGemmLanes) {
      const Ints both = __builtin_convertvector(*reinterpret_cast<const Shorts*>(codes), Ints);
      const Floats scale = *reinterpret_cast<const Floats*>(scales + v * kGemmLanes);
      Floats first, second;
      Code::value(both, first);
      Code::value(both >> 8, second);
      Ints even, odd;
      rounded(first * scale, even);
      rounded(second * scale, odd);
      *reinterpret_cast<Ints*>(target) = ((even >> 16) & 0xffff) | (odd & ~0xffff);
    }
  }
}

}  // namespace

extern const DequantizeKernels dequantize_table;
const DequantizeKernels dequantize_table = {floats<Int8>, floats<Fp8>, pairs<Int8>, pairs<Fp8>};

}  // namespace troupe::kernels::TROUPE_ISA
