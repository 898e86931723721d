// Codes of 8 bits -> words of gemm_kernels.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm_kernels.h"

namespace troupe::kernels {

// `steps` steps of k of a panel of vectors * kGemmLanes columns, each column with a scale of its own.
using Dequantize = void (*)(int64_t steps, const uint8_t* codes, const float* scales, int64_t vectors,
                            Word* target);

struct DequantizeKernels {
  // codes [steps][columns]: a word is a float32, code * scale.
  Dequantize int8_floats, fp8_floats;
  // codes [steps][columns][2], of two successive k: a word is two bfloat16, code * scale rounded.
  Dequantize int8_pairs, fp8_pairs;
};
const DequantizeKernels& dequantize_kernels();

}  // namespace troupe::kernels
