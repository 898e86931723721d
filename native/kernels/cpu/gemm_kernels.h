// Tiles and packing of gemm.cc.
#pragma once

#include <cstdint>

// The inner loops of a GEMM over packed operands. A step of k is one 32-bit word of each row of `a` and of
// each column of `b`: a float, or two successive bfloat16. `a` holds kGemmRows words per step, `b` vectors *
// kGemmLanes.
namespace troupe::kernels {

constexpr int64_t kGemmRows = 8;
constexpr int64_t kGemmLanes = 16;
constexpr int64_t kGemmVectors = 3;
constexpr int64_t kGemmCols = kGemmVectors * kGemmLanes;

// Of any matrix in memory, where rows of bfloat16 may begin at odd places.
typedef uint32_t Word __attribute__((may_alias, aligned(2)));

struct GemmKernels {
  // c [rows <= kGemmRows, vectors * kGemmLanes] (row stride ldc) = (add ? c : 0) + sum over k of a[k] b[k]^T,
  // every element summed in the order of k.
  void (*tile)(int64_t steps, const Word* a, const Word* b, int64_t vectors, float* c, int64_t ldc,
               int64_t rows, bool add);
  // target[step * width + r] = word `step` of row r for the kGemmRows rows, of which `rows` are there; zeros
  // in place of the others.
  void (*transpose)(const void* source, int64_t row_bytes, int64_t rows, int64_t steps, Word* target,
                    int64_t width);
};
const GemmKernels& gemm_kernels();

// The same product of bfloat16, summed in float32 by the processor's own instruction. `round` is rounded to
// bfloat16 once, after the addition.
struct Bfloat16GemmKernels {
  void (*tile)(int64_t steps, const Word* a, const Word* b, int64_t vectors, float* c, int64_t ldc,
               int64_t rows, bool add);
  void (*round)(int64_t steps, const Word* a, const Word* b, int64_t vectors, uint16_t* c, int64_t ldc,
                int64_t rows, bool add);
};
// Null where the processor cannot, or has matrix units that LibTorch's BLAS knows how to use.
const Bfloat16GemmKernels* bfloat16_gemm_kernels();
// The same with matrix units or without: for operands that LibTorch's BLAS does not know. Null where the
// processor cannot.
const Bfloat16GemmKernels* own_bfloat16_products();
// For tests, as select_isa(): these kernels wherever the processor has the instruction, matrix units or not;
// or LibTorch's. Whether they are in use now. Matrices packed before keep their form: pack again.
bool select_bfloat16_gemm(bool own);

}  // namespace troupe::kernels
