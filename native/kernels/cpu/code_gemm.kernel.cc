// Codes become words by tables of 16-bit values. Only AVX-512 has products of codes.
#if defined(__AVX512F__)
#define TROUPE_CODES __attribute__((target("avx512bf16")))
#include "kernels/cpu/code_gemm_tiles.h"
#else
#include "kernels/cpu/code_gemm_kernels.h"
#endif

namespace troupe::kernels::TROUPE_ISA {

extern const CodeGemmKernels code_gemm_table;

#if defined(__AVX512F__)

namespace {

struct WordLookup {
  __m512i parts[4], sign, upper;

  TROUPE_CODES_INLINE explicit WordLookup(const CodeTable& table)
      : sign(_mm512_set1_epi16(static_cast<int16_t>(0x8000))), upper(_mm512_set1_epi16(0x40)) {
    for (int i = 0; i < 4; ++i) parts[i] = _mm512_load_si512(table.values + 32 * i);
  }

  TROUPE_CODES_INLINE void words(const uint8_t* codes, __m512i& first, __m512i& second) const {
    const __m512i code = _mm512_loadu_si512(codes), zero = _mm512_setzero_si512();
    first = values(_mm512_unpacklo_epi8(code, zero));
    second = values(_mm512_unpackhi_epi8(code, zero));
  }

  // Of an index six bits count.
  TROUPE_CODES_INLINE __m512i values(__m512i codes) const {
    const __m512i low = _mm512_permutex2var_epi16(parts[0], codes, parts[1]);
    const __m512i high = _mm512_permutex2var_epi16(parts[2], codes, parts[3]);
    const __m512i magnitude = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(codes, upper), low, high);
    return _mm512_ternarylogic_epi64(magnitude, _mm512_slli_epi16(codes, 8), sign, 0xf8);  // a | b & c
  }
};

}  // namespace

const CodeGemmKernels code_gemm_table = code_kernels_of<WordLookup>();

#else

const CodeGemmKernels code_gemm_table = {};

#endif

}  // namespace troupe::kernels::TROUPE_ISA
