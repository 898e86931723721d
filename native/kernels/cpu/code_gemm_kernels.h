// Products with codes of 8 bits, which become numbers in registers.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/gemm_kernels.h"

// A code is a sign (0x80) and a magnitude (0x7f): a whole number (int8), or exponent and mantissa of e4m3
// (fp8). Either is a bfloat16 without rounding. kCodeSteps successive k of 16 columns are 64 bytes: k and
// k + 1 of column c are bytes 16 (c / 4) + 2 (c % 4) and the next, k + 2 and k + 3 lie 8 bytes behind them,
// so that one interleaving of halves leaves two registers of words (gemm_kernels.h), each with two successive
// k. A panel is [k / kCodeSteps][vectors][64].
namespace troupe::kernels {

constexpr int64_t kCodeSteps = 4;
constexpr int64_t kCodeBytes = kCodeSteps * kGemmLanes;

constexpr int64_t code_place(int64_t k, int64_t column) {
  return 16 * (column / 4) + 8 * (k / 2 % 2) + 2 * (column % 4) + k % 2;
}

// bfloat16 of the 128 magnitudes, whole and as two tables of bytes.
struct CodeTable {
  alignas(64) uint16_t values[128];
  alignas(64) uint8_t low[128], high[128];
};

// c [rows, vectors * kGemmLanes] = (add ? c : 0) + sum over k of a[k] code[k]^T, groups * kCodeSteps of them,
// in the order and with the bits of the tiles of gemm_kernels.h.
using CodeTile = void (*)(int64_t groups, const Word* a, const uint8_t* codes, const CodeTable& table,
                          int64_t vectors, float* c, int64_t ldc, int64_t rows, bool add);
// Codes as the words of gemm_kernels.h: [k][columns] float32, or [k / 2][columns] pairs of bfloat16.
using CodeWords = void (*)(int64_t groups, const uint8_t* codes, const CodeTable& table, int64_t vectors,
                           Word* target);

// rows <= kCodeRows of the tiles.
constexpr int64_t kCodeRows = 4;

struct CodeGemmKernels {
  CodeWords float_words, pair_words;
  CodeTile float_tile;
  CodeTile pair_tile;  // needs AVX512_BF16
};
// The best for this processor, which has AVX-512.
const CodeGemmKernels& code_gemm_kernels();
// All that this processor can run; empty without AVX-512.
std::vector<const CodeGemmKernels*> all_code_gemm_kernels();

// c [vectors * kGemmLanes] = (add ? c : 0) + scales sums.
struct ScaleKernels {
  void (*floats)(const float* sums, const float* scales, int64_t vectors, float* c, bool add);
  void (*bfloat16s)(const float* sums, const float* scales, int64_t vectors, uint16_t* c, bool add);
};
const ScaleKernels& scale_kernels();

}  // namespace troupe::kernels
