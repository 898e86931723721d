// Codes become words by tables of bytes, 64 at a time: an extension that not every processor with AVX-512
// has.
#if defined(__AVX512F__)
#define TROUPE_CODES __attribute__((target("avx512bf16,avx512vbmi")))
#include "kernels/cpu/code_gemm_tiles.h"
#else
#include "kernels/cpu/code_gemm_kernels.h"
#endif

namespace troupe::kernels::TROUPE_ISA {

extern const CodeGemmKernels vbmi_code_gemm_table;

#if defined(__AVX512F__)

namespace {

struct ByteLookup {
  __m512i low0, low1, high0, high1, sign;

  TROUPE_CODES_INLINE explicit ByteLookup(const CodeTable& table)
      : low0(_mm512_load_si512(table.low)),
        low1(_mm512_load_si512(table.low + 64)),
        high0(_mm512_load_si512(table.high)),
        high1(_mm512_load_si512(table.high + 64)),
        sign(_mm512_set1_epi8(-128)) {}

  TROUPE_CODES_INLINE void words(const uint8_t* codes, __m512i& first, __m512i& second) const {
    const __m512i code = _mm512_loadu_si512(codes);
    // Of an index seven bits count.
    const __m512i low = _mm512_permutex2var_epi8(low0, code, low1);
    const __m512i magnitude = _mm512_permutex2var_epi8(high0, code, high1);
    const __m512i high = _mm512_ternarylogic_epi64(magnitude, code, sign, 0xf8);  // a | b & c
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
  }
};

}  // namespace

const CodeGemmKernels vbmi_code_gemm_table = code_kernels_of<ByteLookup>();

#else

const CodeGemmKernels vbmi_code_gemm_table = {};

#endif

}  // namespace troupe::kernels::TROUPE_ISA
