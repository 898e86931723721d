// Tiles over codes, for whichever way codes become words. Included where TROUPE_CODES is the instruction set
// to compile for.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/code_gemm_kernels.h"

#define TROUPE_CODES_INLINE TROUPE_CODES __attribute__((always_inline)) inline

namespace troupe::kernels::TROUPE_ISA {

namespace {

typedef uint32_t Wide __attribute__((vector_size(kGemmLanes * sizeof(uint32_t))));

TROUPE_CODES_INLINE __m512 even(__m512i words) {
  return reinterpret_cast<__m512>(reinterpret_cast<Wide>(words) << 16);
}

TROUPE_CODES_INLINE __m512 odd(__m512i words) {
  return reinterpret_cast<__m512>(reinterpret_cast<Wide>(words) & 0xffff0000);
}

// A step of the sums of one vector of columns over kCodeSteps of k.
template <int kRows>
TROUPE_CODES_INLINE void add_floats(const Word* a, __m512i first, __m512i second, __m512 (&sum)[kRows][3],
                                    int v) {
  const __m512 values[kCodeSteps] = {even(first), odd(first), even(second), odd(second)};
#pragma GCC unroll 4
  for (int k = 0; k < kCodeSteps; ++k) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      sum[r][v] =
          _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(a[k * kGemmRows + r]))),
                          values[k], sum[r][v]);
  }
}

template <int kRows>
TROUPE_CODES_INLINE void add_pairs(const Word* a, __m512i first, __m512i second, __m512 (&sum)[kRows][3],
                                   int v) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
    sum[r][v] =
        _mm512_dpbf16_ps(sum[r][v], reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[r]))),
                         reinterpret_cast<__m512bh>(first));
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
    sum[r][v] = _mm512_dpbf16_ps(
        sum[r][v], reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[kGemmRows + r]))),
        reinterpret_cast<__m512bh>(second));
}

template <typename Lookup, bool kPairs, int kVectors, int kRows>
TROUPE_CODES void tile_of(int64_t groups, const Word* a, const uint8_t* codes, const CodeTable& table,
                          float* c, int64_t ldc, int64_t rows, bool add) {
  const Lookup lookup(table);
  __m512 sum[kRows][3];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < groups; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      __m512i first, second;
      lookup.words(codes + v * kCodeBytes, first, second);
      if constexpr (kPairs) {
        add_pairs<kRows>(a, first, second, sum, v);
      } else {
        add_floats<kRows>(a, first, second, sum, v);
      }
    }
    a += (kPairs ? kCodeSteps / 2 : kCodeSteps) * kGemmRows;
    codes += kVectors * kCodeBytes;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    if (r == rows) return;
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      float* const out = c + r * ldc + v * kGemmLanes;
      _mm512_storeu_ps(out, add ? _mm512_add_ps(_mm512_loadu_ps(out), sum[r][v]) : sum[r][v]);
    }
  }
}

template <typename Lookup, bool kPairs, int kRows>
void tile_rows(int64_t groups, const Word* a, const uint8_t* codes, const CodeTable& table, int64_t vectors,
               float* c, int64_t ldc, int64_t rows, bool add) {
  if (vectors == 3) return tile_of<Lookup, kPairs, 3, kRows>(groups, a, codes, table, c, ldc, rows, add);
  if (vectors == 2) return tile_of<Lookup, kPairs, 2, kRows>(groups, a, codes, table, c, ldc, rows, add);
  tile_of<Lookup, kPairs, 1, kRows>(groups, a, codes, table, c, ldc, rows, add);
}

template <typename Lookup, bool kPairs>
void tile(int64_t groups, const Word* a, const uint8_t* codes, const CodeTable& table, int64_t vectors,
          float* c, int64_t ldc, int64_t rows, bool add) {
  if (rows > 2) return tile_rows<Lookup, kPairs, 4>(groups, a, codes, table, vectors, c, ldc, rows, add);
  if (rows > 1) return tile_rows<Lookup, kPairs, 2>(groups, a, codes, table, vectors, c, ldc, rows, add);
  tile_rows<Lookup, kPairs, 1>(groups, a, codes, table, vectors, c, ldc, rows, add);
}

template <typename Lookup, bool kPairs>
TROUPE_CODES void words(int64_t groups, const uint8_t* codes, const CodeTable& table, int64_t vectors,
                        Word* target) {
  const Lookup lookup(table);
  const int64_t width = vectors * kGemmLanes;
  for (int64_t i = 0; i < groups; ++i) {
    for (int64_t v = 0; v < vectors; ++v, codes += kCodeBytes) {
      __m512i first, second;
      lookup.words(codes, first, second);
      Word* const to = target + v * kGemmLanes;
      if constexpr (kPairs) {
        _mm512_storeu_si512(to, first);
        _mm512_storeu_si512(to + width, second);
      } else {
        _mm512_storeu_ps(to, even(first));
        _mm512_storeu_ps(to + width, odd(first));
        _mm512_storeu_ps(to + 2 * width, even(second));
        _mm512_storeu_ps(to + 3 * width, odd(second));
      }
    }
    target += (kPairs ? kCodeSteps / 2 : kCodeSteps) * width;
  }
}

template <typename Lookup>
constexpr CodeGemmKernels code_kernels_of() {
  return {words<Lookup, false>, words<Lookup, true>, tile<Lookup, false>, tile<Lookup, true>};
}

}  // namespace

}  // namespace troupe::kernels::TROUPE_ISA
