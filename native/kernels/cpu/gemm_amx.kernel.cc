// bfloat16 products by the matrix units (AMX) of some AVX-512 processors. Compiled once per instruction set
// like its neighbours; the units are an extension that few such processors have.
#if defined(__AVX512F__)
#include <immintrin.h>

#define TROUPE_AMX __attribute__((target("amx-tile,amx-bf16,avx512bf16")))
#define TROUPE_STEPS TROUPE_AMX
#include "kernels/cpu/gemm_steps.h"
#else
#include "kernels/cpu/gemm_kernels.h"
#endif

namespace troupe::kernels::TROUPE_ISA {

extern const Bfloat16GemmKernels amx_gemm_table;

#if defined(__AVX512F__)

namespace {

// All eight tile registers are whole: 16 rows of 64 bytes. Rows, columns and steps that are not there are
// zeros.
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileWords = 16;                     // of a row: a group of steps of k
constexpr int64_t kTileSize = kTileRows * kTileWords;  // words
constexpr int64_t kBlockRows = 2 * kTileRows;
static_assert(kBlockRows <= kMostGemmRows);

typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Values __attribute__((vector_size(32)));

struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t first_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

TROUPE_AMX void enter() {
  static const TileConfiguration whole;
  _tile_loadconfig(&whole);
}

TROUPE_AMX void leave() {
  _tile_release();
}

// Sums of one block of 16 x kHalves rows of `a` with kVectors x 16 columns, to `out` [16 * kHalves, ld]. A
// product takes the unit 16 cycles and a load 8, so that loading a tile of b twice costs less than holding
// fewer sums. An element is summed by groups of 32 values of k in order, in any of these shapes.
template <int kVectors, int kHalves>
TROUPE_AMX void sums_of(int64_t groups, const Word* a, const Word* b, const Ahead& asked, float* out,
                        int64_t ld) {
  constexpr int64_t kWidth = kVectors * kTileWords;
  constexpr int64_t kRowBytes = kWidth * int64_t{sizeof(Word)};
  _tile_zero(0);
  if (kVectors > 1) _tile_zero(1);
  if (kVectors > 2) _tile_zero(2);
  if (kHalves > 1) {
    _tile_zero(3);
    if (kVectors > 1) _tile_zero(4);
    if (kVectors > 2) _tile_zero(5);
  }
  const int64_t share = kHalves > 1 ? (asked.lines + groups - 1) / groups : 0;
  const char* ahead = asked.from;
  const char* const stop = asked.from + asked.lines * kLineBytes;
  for (int64_t g = 0; g < groups; ++g) {
    // With fewer rows the loads of b by themselves ask for all that memory gives.
    for (int64_t i = 0; i < share && ahead < stop; ++i) ask_for(ahead);
    _tile_loadd(6, a, 64);
    _tile_loadd(7, b, kRowBytes);
    _tile_dpbf16ps(0, 6, 7);
    if (kVectors > 1) {
      _tile_loadd(7, b + kTileWords, kRowBytes);
      _tile_dpbf16ps(1, 6, 7);
    }
    if (kVectors > 2) {
      _tile_loadd(7, b + 2 * kTileWords, kRowBytes);
      _tile_dpbf16ps(2, 6, 7);
    }
    if (kHalves > 1) {
      _tile_loadd(6, a + kTileSize, 64);
      if (kVectors > 2) {
        _tile_dpbf16ps(5, 6, 7);
        _tile_loadd(7, b + kTileWords, kRowBytes);
      }
      if (kVectors > 1) {
        _tile_dpbf16ps(4, 6, 7);
        _tile_loadd(7, b, kRowBytes);
      }
      _tile_dpbf16ps(3, 6, 7);
    }
    a += 2 * kTileSize;
    b += kTileWords * kWidth;
  }
  const int64_t bytes = ld * int64_t{sizeof(float)};
  _tile_stored(0, out, bytes);
  if (kVectors > 1) _tile_stored(1, out + kTileWords, bytes);
  if (kVectors > 2) _tile_stored(2, out + 2 * kTileWords, bytes);
  if (kHalves > 1) {
    out += kTileRows * ld;
    _tile_stored(3, out, bytes);
    if (kVectors > 1) _tile_stored(4, out + kTileWords, bytes);
    if (kVectors > 2) _tile_stored(5, out + 2 * kTileWords, bytes);
  }
}

template <int kHalves, typename Out>
void sums_of_halves(const GemmTile<Out>& t, float* out, int64_t ld) {
  const int64_t groups = t.steps / kTileWords;
  if (t.vectors == 3) return sums_of<3, kHalves>(groups, t.a, t.b, t.ahead, out, ld);
  if (t.vectors == 2) return sums_of<2, kHalves>(groups, t.a, t.b, t.ahead, out, ld);
  sums_of<1, kHalves>(groups, t.a, t.b, t.ahead, out, ld);
}

template <typename Out>
void sums(const GemmTile<Out>& t, float* out, int64_t ld) {
  if (t.rows > kTileRows) return sums_of_halves<2>(t, out, ld);
  sums_of_halves<1>(t, out, ld);
}

TROUPE_AMX inline void store(float* c, __m512 sum, const float* addend) {
  _mm512_storeu_ps(c, addend != nullptr ? _mm512_add_ps(_mm512_loadu_ps(addend), sum) : sum);
}

TROUPE_AMX inline void store(uint16_t* c, __m512 sum, const uint16_t* addend) {
  if (addend != nullptr) {
    const auto there = reinterpret_cast<Values>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(addend)));
    sum += reinterpret_cast<__m512>(__builtin_convertvector(there, Words) << 16);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(c), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sum)));
}

template <typename Out>
TROUPE_AMX void tile(const GemmTile<Out>& t) {
  if constexpr (sizeof(Out) == sizeof(float)) {
    if (t.addend == nullptr && t.rows % kTileRows == 0) return sums(t, t.c, t.ldc);
  }
  if (t.addend != nullptr) {  // it comes from memory while the units multiply
    for (int64_t r = 0; r < t.rows; ++r) {
      const char* row = reinterpret_cast<const char*>(t.addend + r * t.addend_ld);
      for (int64_t at = 0; at < t.vectors * kGemmLanes * int64_t{sizeof(Out)}; at += 64)
        _mm_prefetch(row + at, _MM_HINT_T0);
    }
  }
  alignas(64) float block[kBlockRows * kGemmCols];
  sums(t, block, kGemmCols);
  for (int64_t r = 0; r < t.rows; ++r) {
    for (int64_t v = 0; v < t.vectors; ++v)
      store(t.c + r * t.ldc + v * kGemmLanes, _mm512_load_ps(block + r * kGemmCols + v * kGemmLanes),
            addend_of(t, r, v));
  }
}

// Values [first, first + 32) of k of a row, zeros behind `depth`.
TROUPE_AMX inline __m512i values_of(const uint16_t* row, int64_t first, int64_t depth) {
  const int64_t there = depth - first;
  if (there >= 2 * kTileWords) return _mm512_loadu_si512(row + first);
  return _mm512_maskz_loadu_epi16((__mmask32{1} << (there > 0 ? there : 0)) - 1, row + first);
}

// The same of float32, rounded. Subnormal numbers become zeros: probabilities are none, being 0 or at least
// e^-87.
TROUPE_AMX inline __m512i values_of(const float* row, int64_t first, int64_t depth) {
  const int64_t there = depth - first;
  if (there >= 2 * kTileWords) {
    return reinterpret_cast<__m512i>(
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(row + first + kTileWords), _mm512_loadu_ps(row + first)));
  }
  const auto mask = static_cast<__mmask32>((int64_t{1} << (there > 0 ? there : 0)) - 1);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
      _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> kTileWords), row + first + kTileWords),
      _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), row + first)));
}

// A block is, group of steps by group, two tiles of 16 rows. The second is not read where all rows are in the
// first.
template <typename Value>
TROUPE_AMX inline void pack_rows_of(const char* bytes, int64_t row_bytes, int64_t rows, int64_t first_step,
                                    int64_t steps, int64_t depth, Word* target) {
  const int64_t written = rows > kTileRows ? kBlockRows : kTileRows;
  for (int64_t r = 0; r < written; ++r) {
    Word* to = target + r / kTileRows * kTileSize + r % kTileRows * kTileWords;
    const Value* from = reinterpret_cast<const Value*>(bytes + r * row_bytes);
    for (int64_t s = 0; s < steps; s += kTileWords, to += 2 * kTileSize) {
      _mm512_storeu_si512(to,
                          r < rows ? values_of(from, 2 * (first_step + s), depth) : _mm512_setzero_si512());
    }
  }
}

TROUPE_AMX void pack_rows(const void* source, int64_t row_bytes, int64_t rows, int64_t first_step,
                          int64_t steps, int64_t depth, Word* target) {
  pack_rows_of<uint16_t>(static_cast<const char*>(source), row_bytes, rows, first_step, steps, depth, target);
}
TROUPE_AMX void pack_floats(const float* source, int64_t ld, int64_t rows, int64_t first_step, int64_t steps,
                            int64_t depth, Word* target) {
  pack_rows_of<float>(reinterpret_cast<const char*>(source), ld * int64_t{sizeof(float)}, rows, first_step,
                      steps, depth, target);
}

// words[p][c] -> words[c][p] in registers.
TROUPE_AMX inline void transpose(Words words[kTileRows]) {
  Words t[kTileRows];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = __builtin_shuffle(words[i], words[i + 1],
                             Words{0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29});
    t[i + 1] = __builtin_shuffle(words[i], words[i + 1],
                                 Words{2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31});
  }
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const int from = i / 4 * 4 + i % 4 / 2;
    words[i] = __builtin_shuffle(t[from], t[from + 2],
                                 Words{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29});
    words[i + 1] = __builtin_shuffle(t[from], t[from + 2],
                                     Words{2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31});
  }
  // words[4 i + j] has columns j, j + 4, j + 8, j + 12 of rows 4 i to 4 i + 3.
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int from = i / 4 * 8 + i % 4;
    t[i] = __builtin_shuffle(words[from], words[from + 4],
                             Words{0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23});
    t[i + 8] = __builtin_shuffle(words[from], words[from + 4],
                                 Words{8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31});
  }
  // t[j] has columns j and j + 4 of rows 0 to 7, t[j + 4] of rows 8 to 15; t[j + 8] and t[j + 12] columns j +
  // 8, j + 12.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 2
    for (int high = 0; high < 2; ++high) {
      const Words first = t[j + 8 * high], last = t[j + 8 * high + 4];
      words[j + 8 * high] =
          __builtin_shuffle(first, last, Words{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23});
      words[j + 8 * high + 4] =
          __builtin_shuffle(first, last, Words{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31});
    }
  }
}

// The same where k runs along the columns.
TROUPE_AMX void pack_columns(const void* source, int64_t row_bytes, int64_t columns, int64_t first_step,
                             int64_t steps, int64_t depth, Word* target) {
  const char* bytes = static_cast<const char*>(source);
  for (int64_t half = 0; half < (columns > kTileRows ? 2 : 1); ++half) {
    const int64_t first = half * kTileRows, there = columns - first;
    const __mmask16 mask = there >= kTileRows ? 0xffff : static_cast<__mmask16>((1u << there) - 1);
    const auto row = [&](int64_t k) TROUPE_AMX {
      if (k >= depth) return Words{};
      const auto* from = reinterpret_cast<const uint16_t*>(bytes + k * row_bytes) + first;
      return __builtin_convertvector(reinterpret_cast<Values>(_mm256_maskz_loadu_epi16(mask, from)), Words);
    };
    Word* to = target + half * kTileSize;
    for (int64_t s = 0; s < steps; s += kTileWords, to += 2 * kTileSize) {
      Words words[kTileRows];
      for (int64_t p = 0; p < kTileWords; ++p) {
        const int64_t k = 2 * (first_step + s + p);
        words[p] = row(k) | row(k + 1) << 16;
      }
      transpose(words);
      for (int64_t r = 0; r < kTileRows; ++r) {
        _mm512_storeu_si512(to + r * kTileWords, reinterpret_cast<__m512i>(words[r]));
      }
    }
  }
}

}  // namespace

const Bfloat16GemmKernels amx_gemm_table = {kBlockRows,  kTileWords,     pack_rows, pack_columns, pack_floats,
                                            tile<float>, tile<uint16_t>, enter,     leave};

#else

const Bfloat16GemmKernels amx_gemm_table = {};

#endif

}  // namespace troupe::kernels::TROUPE_ISA
