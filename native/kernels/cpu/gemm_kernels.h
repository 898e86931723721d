// Tiles and packing of gemm.cc.
#pragma once

#include <cstdint>

// The inner loops of a GEMM over packed operands. A step of k is one 32-bit word of each row of `a` and of
// each column of `b`: a float, or two successive bfloat16. `a` holds kGemmRows words per step, `b` vectors *
// kGemmLanes.
namespace troupe::kernels {

constexpr int64_t kGemmRows = 8;
constexpr int64_t kMostGemmRows = 32;  // of a block of any kernel
constexpr int64_t kGemmLanes = 16;
constexpr int64_t kGemmVectors = 3;
constexpr int64_t kGemmCols = kGemmVectors * kGemmLanes;

// Of any matrix in memory, where rows of bfloat16 may begin at odd places.
typedef uint32_t Word __attribute__((may_alias, aligned(2)));

// Memory that a tile asks for while it computes. Weights that no cache holds come at twice the rate at which
// the processor would fetch them by itself, and products of few rows are bound by that.
struct Ahead {
  const char* from = nullptr;
  int64_t lines = 0;
};
constexpr int64_t kLineBytes = 64;

// c [rows, vectors * kGemmLanes] (row stride ldc) = addend + sum over k of a[k] b[k]^T, every element summed
// in the order of k. The addend (row stride addend_ld; null: 0) may be c. Step s of row r of `a` is a[r *
// a_row + s * a_step]; bfloat16 takes it packed alone.
template <typename Out>
struct GemmTile {
  int64_t steps = 0;
  const Word* a = nullptr;
  const Word* b = nullptr;
  int64_t vectors = 0;
  Out* c = nullptr;
  int64_t ldc = 0, rows = 0;
  const Out* addend = nullptr;
  int64_t addend_ld = 0;
  int64_t a_row = 1, a_step = kGemmRows;
  Ahead ahead = {};
};

// Of the lanes of vector v of row r, or null.
template <typename Out>
inline const Out* addend_of(const GemmTile<Out>& t, int64_t r, int64_t v) {
  return t.addend != nullptr ? t.addend + r * t.addend_ld + v * kGemmLanes : nullptr;
}

struct GemmKernels {
  // Up to kGemmRows rows.
  void (*tile)(const GemmTile<float>& t);
  // target[step * width + r] = word `step` of row r for the kGemmRows rows, of which `rows` are there; zeros
  // in place of the others.
  void (*transpose)(const void* source, int64_t row_bytes, int64_t rows, int64_t steps, Word* target,
                    int64_t width);
  // target[step * width + c] = bfloat16 c of row 2 * step, and above it that of the row behind.
  void (*interleave)(const void* source, int64_t row_bytes, int64_t cols, int64_t steps, Word* target,
                     int64_t width);
};
const GemmKernels& gemm_kernels();

// The same product of bfloat16, summed in float32 by the processor's own instructions: vectors (AVX512_BF16)
// or matrix units (AMX). Both take `b` in the form above.
struct Bfloat16GemmKernels {
  int64_t rows;   // of a block of `a`
  int64_t group;  // numbers of steps are multiples of it; what k does not have is zeros on both sides
  // A block of `a` from a matrix with k values along its rows (pack_rows) or its columns: steps [first, first
  // + steps) of `there` rows, zeros in place of the others. Null: as in the form above.
  void (*pack_rows)(const void* source, int64_t row_bytes, int64_t there, int64_t first, int64_t steps,
                    int64_t k, Word* target);
  void (*pack_columns)(const void* source, int64_t row_bytes, int64_t there, int64_t first, int64_t steps,
                       int64_t k, Word* target);
  // pack_rows of float32, rounded to bfloat16; null where pack_rows is.
  void (*pack_floats)(const float* source, int64_t ld, int64_t there, int64_t first, int64_t steps, int64_t k,
                      Word* target);
  // As GemmKernels::tile, for up to `rows` rows. `round` is rounded to bfloat16 once, after the addition.
  void (*tile)(const GemmTile<float>& t);
  void (*round)(const GemmTile<uint16_t>& t);
  // Before the first tile of a thread and after its last one; null where there is nothing to do.
  void (*enter)();
  void (*leave)();
};
// By vectors. Null where the processor cannot.
const Bfloat16GemmKernels* bfloat16_vector_kernels();
// By matrix units. Null where the processor has none or the system keeps them to itself.
const Bfloat16GemmKernels* bfloat16_matrix_kernels();
// Those in use: matrix units before vectors. Null where products of bfloat16 are LibTorch's.
const Bfloat16GemmKernels* bfloat16_gemm_kernels();
// For tests, as select_isa(): one of the above, or null. Matrices packed before keep their form: pack again.
void select_bfloat16_gemm(const Bfloat16GemmKernels* kernels);

}  // namespace troupe::kernels
