// Values of a few bits, of which those of a block have a scale in common.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace troupe {

struct PackedFormat {
  int64_t bits;           // of a value
  at::ScalarType values;  // what it is times its scale, rounded once where it does not fit
  // The first `count` values in `codes`, times `scale`. False: the scale is 0 and a value is not, which no
  // quantisation makes.
  bool (*unpack)(const uint8_t* codes, int64_t count, float scale, void* values);
};

// By the name that a slice has as its dtype; nullptr: values that are not packed.
// - MXFP4: E2M1, the first of a byte in its lower four bits (OCP Microscaling Formats v1.0). bfloat16, in
//   which all products with a power of two are exact: as convert_moe_packed_tensors of transformers.
// - F8_E4M3: a byte each, without infinities (OCP 8-bit Floating Point v1.0, OFP8). float32: as Fp8Dequantize
//   of transformers.
const PackedFormat* packed_format(const std::string& dtype);

}  // namespace troupe
