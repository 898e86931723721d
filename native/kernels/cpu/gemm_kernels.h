#pragma once

#include <cstdint>

// The inner loop of a float32 GEMM over packed operands: `a` holds kGemmRows values per step of k, `b`
// vectors * kGemmLanes values per step of k.
namespace troupe::kernels {

constexpr int64_t kGemmRows = 8;
constexpr int64_t kGemmLanes = 16;
constexpr int64_t kGemmVectors = 3;
constexpr int64_t kGemmCols = kGemmVectors * kGemmLanes;

struct GemmKernels {
  // c [rows <= kGemmRows, vectors * kGemmLanes] (row stride ldc) = (add ? c : 0) + sum over k of a[k] b[k]^T,
  // every element summed in the order of k.
  void (*tile)(int64_t k, const float* a, const float* b, int64_t vectors, float* c, int64_t ldc,
               int64_t rows, bool add);
  // a [k][kGemmRows] from `rows` rows of a row-major matrix, zeros in place of missing rows.
  void (*pack_rows)(const float* source, int64_t ld, int64_t rows, int64_t k, float* a);
};
const GemmKernels& gemm_kernels();

}  // namespace troupe::kernels
