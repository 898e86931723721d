// MXFP4 (OCP Microscaling Formats v1.0): blocks of 32 values of four bits, E2M1, with a power of two for each
// block, E8M0.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe {

constexpr int64_t kMxfp4Block = 32;
constexpr uint8_t kMxfp4NanScale = 0xff;

// bfloat16 [rows, columns] of blocks [rows, columns / 2] (the first value of a byte in its lower four bits)
// and scales [rows, columns / 32], both kByte: every value exactly, but that those beyond bfloat16 are
// infinite and those with a scale that is NaN are NaN. As convert_moe_packed_tensors of transformers.
at::Tensor dequantize_mxfp4(const at::Tensor& blocks, const at::Tensor& scales);

}  // namespace troupe
