// The float32 tile of gemm.cc, and the transposition that packs operands.
#define TROUPE_STEPS  // those of the file
#include "kernels/cpu/gemm_steps.h"
#include "kernels/cpu/lanes.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
typedef float Value __attribute__((may_alias));

// The most rows and vectors whose sums registers hold. Of AVX-512's 32 they are 24: three loads of b serve 24
// multiply-adds, so that b may stream from the second-level cache. Of 16 they are 12, and a tile of the
// caller's is several of these. With fewer rows fewer multiply-adds: a decoding step of few sequences is
// bound by memory, not by rows that are not there. A row's sums are the same in all of them.
constexpr int kMostRows = kLanes == 16 ? 8 : 4;
constexpr int most_vectors(int rows) {
  return kLanes == 16 || rows > 2 ? 3 : 6;
}

// The next `lines` of what is left to be asked for.
Ahead take(Ahead& left, int64_t lines) {
  const Ahead taken{left.from, lines < left.lines ? lines : left.lines};
  left = {left.from + taken.lines * kLineBytes, left.lines - taken.lines};
  return taken;
}

// Steps that all rows of a tile take before its further ones: what they read of b comes from the first-level
// cache but for the first of them. Between them sums wait in memory.
constexpr int64_t kStepsAtOnce = kLanes == 16 ? int64_t{1} << 40 : 96;

// Part of a tile: rows from `row` on, of which some may not be there, vectors from column `first` on, and
// steps [step, step + steps).
struct Part {
  int64_t row, first, step, steps;
  Ahead ahead;
};

template <int kRows, int kVectors>
void sums_of(const GemmTile<float>& t, const Part& part, Lanes* kept) {
  const int64_t a_step = t.a_step, width = t.vectors * kGemmLanes;
  const Value* a = reinterpret_cast<const Value*>(t.a) + part.row * t.a_row + part.step * a_step;
  const Value* b = reinterpret_cast<const Value*>(t.b) + part.first + part.step * width;
  const int64_t rows = t.rows - part.row;
  const auto addend = [&](int64_t r) {
    return t.addend != nullptr ? t.addend + (part.row + r) * t.addend_ld + part.first : nullptr;
  };
  const bool last = part.step + part.steps == t.steps;
  int64_t row_of[kRows];  // the first one in place of those that are not there
  for (int r = 0; r < kRows; ++r) row_of[r] = r < rows ? r * t.a_row : 0;
  Lanes sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = part.step == 0 ? Lanes{} : kept[r * kVectors + v];
  }
  // It comes from memory while the tile multiplies.
  for (int r = 0; last && t.addend != nullptr && r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(addend(r < rows ? r : 0) + v * kLanes, 0, 3);
  }
  const auto step = [&]() __attribute__((always_inline)) {
    Lanes row[kVectors];
#pragma GCC unroll 6
    for (int v = 0; v < kVectors; ++v) row[v] = *reinterpret_cast<const Lanes*>(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Lanes value = a[row_of[r]] - Lanes{};  // a load; + Lanes{} would be an addition
#pragma GCC unroll 6
      for (int v = 0; v < kVectors; ++v) sum[r][v] += value * row[v];
    }
    a += a_step;
    b += width;
  };
  over_steps(part.steps, part.ahead, step);
  if (!last) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) kept[r * kVectors + v] = sum[r][v];
    }
    return;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (r == rows) return;
    const float* const added = addend(r);
    float* const c = t.c + (part.row + r) * t.ldc + part.first;
#pragma GCC unroll 6
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<Lanes*>(c + v * kLanes) =
          added != nullptr ? *reinterpret_cast<const Lanes*>(added + v * kLanes) + sum[r][v] : sum[r][v];
    }
  }
}

template <int kRows, int kVectors = most_vectors(kRows)>
void vectors_of(const GemmTile<float>& t, const Part& part, int64_t vectors, Lanes* kept) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) return vectors_of<kRows, kVectors - 1>(t, part, vectors, kept);
  }
  sums_of<kRows, kVectors>(t, part, kept);
}

// kRows: of all parts of the tile but the last, which may have fewer. No divisions in the loops: a part takes
// a few hundred cycles.
template <int kRows>
void rows_of(const GemmTile<float>& t) {
  constexpr int64_t kMost = most_vectors(kRows);
  const int64_t vectors = t.vectors * (kGemmLanes / kLanes), cuts = (vectors + kMost - 1) / kMost;
  const int64_t width = (vectors + cuts - 1) / cuts, parts = (t.rows + kRows - 1) / kRows;
  const int64_t at_once = parts > 1 ? kStepsAtOnce : t.steps;
  const int64_t count = cuts * parts * (at_once < t.steps ? (t.steps + at_once - 1) / at_once : 1);
  Ahead ahead = t.ahead;
  const int64_t lines = ahead.lines > 0 ? (ahead.lines + count - 1) / count : 0;
  Lanes kept[kGemmRows * kMost];
  for (int64_t first = 0; first < vectors; first += width) {
    const int64_t there = vectors - first < width ? vectors - first : width;
    for (int64_t step = 0; step < t.steps; step += at_once) {
      const int64_t steps = t.steps - step < at_once ? t.steps - step : at_once;
      for (int64_t row = 0; row < t.rows; row += kRows)
        vectors_of<kRows>(t, {row, first * kLanes, step, steps, take(ahead, lines)}, there,
                          kept + row * kMost);
    }
  }
}

void tile(const GemmTile<float>& t) {
  if (t.rows > 4) return rows_of<kMostRows>(t);
  if (t.rows > 2) return rows_of<4>(t);
  if (t.rows > 1) return rows_of<2>(t);
  rows_of<1>(t);
}

typedef uint32_t Half __attribute__((vector_size(32), aligned(2), may_alias));
typedef int HalfIndex __attribute__((vector_size(32)));

// An 8 x 8 transposition in registers.
inline void transpose_8x8(const char* source, int64_t row_bytes, Word* target, int64_t width) {
  Half r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = *reinterpret_cast<const Half*>(source + i * row_bytes);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = __builtin_shuffle(r[i], r[i + 1], HalfIndex{0, 8, 1, 9, 4, 12, 5, 13});
    t[i + 1] = __builtin_shuffle(r[i], r[i + 1], HalfIndex{2, 10, 3, 11, 6, 14, 7, 15});
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = __builtin_shuffle(t[i], t[i + 2], HalfIndex{0, 1, 8, 9, 4, 5, 12, 13});
    r[i + 1] = __builtin_shuffle(t[i], t[i + 2], HalfIndex{2, 3, 10, 11, 6, 7, 14, 15});
    r[i + 2] = __builtin_shuffle(t[i + 1], t[i + 3], HalfIndex{0, 1, 8, 9, 4, 5, 12, 13});
    r[i + 3] = __builtin_shuffle(t[i + 1], t[i + 3], HalfIndex{2, 3, 10, 11, 6, 7, 14, 15});
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<Half*>(target + i * width) =
        __builtin_shuffle(r[i], r[i + 4], HalfIndex{0, 1, 2, 3, 8, 9, 10, 11});
    *reinterpret_cast<Half*>(target + (i + 4) * width) =
        __builtin_shuffle(r[i], r[i + 4], HalfIndex{4, 5, 6, 7, 12, 13, 14, 15});
  }
}

void transpose(const void* source, int64_t row_bytes, int64_t rows, int64_t steps, Word* target,
               int64_t width) {
  const char* bytes = static_cast<const char*>(source);
  int64_t i = 0;
  if (rows == kGemmRows) {
    for (; i + 8 <= steps; i += 8)
      transpose_8x8(bytes + i * int64_t{sizeof(Word)}, row_bytes, target + i * width, width);
  }
  for (; i < steps; ++i) {
    for (int64_t r = 0; r < kGemmRows; ++r) {
      target[i * width + r] = r < rows ? reinterpret_cast<const Word*>(bytes + r * row_bytes)[i] : 0;
    }
  }
}

typedef uint32_t Pairs __attribute__((vector_size(kGemmLanes * 4), aligned(2), may_alias));
typedef uint16_t Halves __attribute__((vector_size(kGemmLanes * 2), aligned(2), may_alias));
typedef uint16_t Brain16 __attribute__((may_alias));

void interleave(const void* source, int64_t row_bytes, int64_t cols, int64_t steps, Word* target,
                int64_t width) {
  const char* bytes = static_cast<const char*>(source);
  for (int64_t i = 0; i < steps; ++i, bytes += 2 * row_bytes, target += width) {
    const Brain16* low = reinterpret_cast<const Brain16*>(bytes);
    const Brain16* high = reinterpret_cast<const Brain16*>(bytes + row_bytes);
    int64_t c = 0;
    for (; c + kGemmLanes <= cols; c += kGemmLanes) {
      const Pairs even = __builtin_convertvector(*reinterpret_cast<const Halves*>(low + c), Pairs);
      const Pairs odd = __builtin_convertvector(*reinterpret_cast<const Halves*>(high + c), Pairs);
      *reinterpret_cast<Pairs*>(target + c) = even | odd << 16;
    }
    for (; c < cols; ++c) target[c] = low[c] | static_cast<Word>(high[c]) << 16;
  }
}

}  // namespace

extern const GemmKernels gemm_table;
const GemmKernels gemm_table = {tile, transpose, interleave};

}  // namespace troupe::kernels::TROUPE_ISA
