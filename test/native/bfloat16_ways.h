// Every way to multiply bfloat16 that the processor has.
#pragma once

#include <vector>

#include "kernels/cpu/gemm_kernels.h"

namespace troupe {

// Runs body() with LibTorch's products, with vectors and with matrix units, as far as they are there.
template <typename Body>
void for_each_bfloat16_gemm(Body&& body) {
  const auto* const first = kernels::bfloat16_gemm_kernels();
  std::vector<const kernels::Bfloat16GemmKernels*> ways{nullptr};
  for (const auto* own : {kernels::bfloat16_vector_kernels(), kernels::bfloat16_matrix_kernels()}) {
    if (own != nullptr) ways.push_back(own);
  }
  for (const auto* way : ways) {
    kernels::select_bfloat16_gemm(way);
    body();
  }
  kernels::select_bfloat16_gemm(first);
}

}  // namespace troupe
