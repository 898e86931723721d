// The float32 tile of gemm.cc, and the transposition that packs operands.
#define TROUPE_STEPS  // those of the file
#include "kernels/cpu/gemm_steps.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

// One AVX-512 register of lanes; the compiler splits it on lesser processors.
typedef float Lanes __attribute__((vector_size(kGemmLanes * sizeof(float)), aligned(4), may_alias));
typedef float Value __attribute__((may_alias));

// 8 x 48 accumulators are 24 of AVX-512's 32 registers; three loads of b serve 24 multiply-adds, so that b
// may stream from the second-level cache. With fewer rows fewer multiply-adds: a decoding step of few
// sequences is bound by memory, not by rows that are not there. A row's sums are the same in all of them.
template <int kVectors, int kRows>
void tile_of(const GemmTile<float>& t) {
  const Value* a = reinterpret_cast<const Value*>(t.a);
  const Value* b = reinterpret_cast<const Value*>(t.b);
  const int64_t a_step = t.a_step;
  int64_t row_of[kRows];  // the first one in place of those that are not there
  for (int r = 0; r < kRows; ++r) row_of[r] = r < t.rows ? r * t.a_row : 0;
  Lanes sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Lanes{};
  }
  // It comes from memory while the tile multiplies.
  for (int r = 0; t.addend != nullptr && r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      __builtin_prefetch(t.addend + (r < t.rows ? r * t.addend_ld : 0) + v * kGemmLanes, 0, 3);
  }
  const auto step = [&]() __attribute__((always_inline)) {
    Lanes row[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) row[v] = *reinterpret_cast<const Lanes*>(b + v * kGemmLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Lanes value = a[row_of[r]] - Lanes{};  // a load; + Lanes{} would be an addition
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sum[r][v] += value * row[v];
    }
    a += a_step;
    b += kVectors * kGemmLanes;
  };
  over_steps(t.steps, t.ahead, step);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (r == t.rows) return;
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      const auto* addend = reinterpret_cast<const Lanes*>(addend_of(t, r, v));
      *reinterpret_cast<Lanes*>(t.c + r * t.ldc + v * kGemmLanes) =
          addend != nullptr ? *addend + sum[r][v] : sum[r][v];
    }
  }
}

template <int kRows>
void tile_rows(const GemmTile<float>& t) {
  if (t.vectors == 3) return tile_of<3, kRows>(t);
  if (t.vectors == 2) return tile_of<2, kRows>(t);
  tile_of<1, kRows>(t);
}

void tile(const GemmTile<float>& t) {
  if (t.rows > 4) return tile_rows<kGemmRows>(t);
  if (t.rows > 2) return tile_rows<4>(t);
  if (t.rows > 1) return tile_rows<2>(t);
  tile_rows<1>(t);
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
