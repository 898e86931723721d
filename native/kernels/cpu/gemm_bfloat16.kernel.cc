// Compiled once per instruction set like its neighbours; only AVX-512 has the instruction, as an extension
// that not every such processor has.
#if defined(__AVX512F__)
#include <immintrin.h>

#define TROUPE_BFLOAT16 __attribute__((target("avx512bf16")))
#define TROUPE_STEPS TROUPE_BFLOAT16
#include "kernels/cpu/gemm_steps.h"
#else
#include "kernels/cpu/gemm_kernels.h"
#endif

namespace troupe::kernels::TROUPE_ISA {

extern const Bfloat16GemmKernels bfloat16_gemm_table;

#if defined(__AVX512F__)

namespace {

TROUPE_BFLOAT16 inline void store(float* c, __m512 sum, const float* addend) {
  _mm512_storeu_ps(c, addend != nullptr ? _mm512_add_ps(_mm512_loadu_ps(addend), sum) : sum);
}

typedef uint16_t Rounded __attribute__((vector_size(kGemmLanes * sizeof(uint16_t)), aligned(2), may_alias));
typedef uint32_t Wide __attribute__((vector_size(kGemmLanes * sizeof(uint32_t))));

TROUPE_BFLOAT16 inline void store(uint16_t* c, __m512 sum, const uint16_t* addend) {
  if (addend != nullptr) {
    const Rounded& there = *reinterpret_cast<const Rounded*>(addend);
    sum += reinterpret_cast<__m512>(__builtin_convertvector(there, Wide) << 16);
  }
  Rounded* const out = reinterpret_cast<Rounded*>(c);  // not auto, which would forget the alignment
  *out = reinterpret_cast<Rounded>(_mm512_cvtneps_pbh(sum));
}

// Registers as in gemm.kernel.cc. An instruction adds the products of two steps of k to every lane.
template <int kVectors, int kRows, typename Out>
TROUPE_BFLOAT16 void tile_of(const GemmTile<Out>& t) {
  const Word* a = t.a;
  const Word* b = t.b;
  __m512 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const auto step = [&]() TROUPE_BFLOAT16 __attribute__((always_inline)) {
    __m512i row[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) row[v] = _mm512_loadu_si512(b + v * kGemmLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i value = _mm512_set1_epi32(static_cast<int>(a[r]));
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], reinterpret_cast<__m512bh>(value),
                                     reinterpret_cast<__m512bh>(row[v]));
    }
    a += kGemmRows;
    b += kVectors * kGemmLanes;
  };
  over_steps(t.steps, t.ahead, step);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (r == t.rows) return;
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) store(t.c + r * t.ldc + v * kGemmLanes, sum[r][v], addend_of(t, r, v));
  }
}

template <int kRows, typename Out>
void tile_rows(const GemmTile<Out>& t) {
  if (t.vectors == 3) return tile_of<3, kRows>(t);
  if (t.vectors == 2) return tile_of<2, kRows>(t);
  tile_of<1, kRows>(t);
}

template <typename Out>
void tile(const GemmTile<Out>& t) {
  if (t.rows > 4) return tile_rows<kGemmRows>(t);
  if (t.rows > 2) return tile_rows<4>(t);
  if (t.rows > 1) return tile_rows<2>(t);
  tile_rows<1>(t);
}

}  // namespace

const Bfloat16GemmKernels bfloat16_gemm_table = {
    kGemmRows, 1, nullptr, nullptr, nullptr, tile<float>, tile<uint16_t>, nullptr, nullptr};

#else

const Bfloat16GemmKernels bfloat16_gemm_table = {};

#endif

}  // namespace troupe::kernels::TROUPE_ISA
