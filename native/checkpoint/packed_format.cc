// From codes to numbers.
#include "checkpoint/packed_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace troupe {

namespace {

// E2M1, by its four bits, of which the first is the sign.
constexpr std::array<float, 16> kE2M1 = {0,    0.5F,  1,  1.5F,  2,  3,  4,  6,
                                         -0.F, -0.5F, -1, -1.5F, -2, -3, -4, -6};

bool unpack_e2m1(const uint8_t* codes, int64_t count, float scale, void* values) {
  // The bits in bfloat16 of all values under the scale: the float32 of each ends in zeros.
  std::array<uint16_t, 16> bits{};
  for (size_t code = 0; code < bits.size(); ++code)
    bits[code] = static_cast<uint16_t>(std::bit_cast<uint32_t>(kE2M1[code] * scale) >> 16);
  auto* to = static_cast<uint16_t*>(values);
  for (int64_t at = 0; at < count / 2; ++at) {
    to[2 * at] = bits[codes[at] & 15];
    to[2 * at + 1] = bits[codes[at] >> 4];
  }
  return true;
}

constexpr uint8_t kE4M3Magnitude = 0x7f;  // also the bits of NaN

// By all eight bits: a sign, four of an exponent whose bias is 7, and three of a mantissa.
constexpr std::array<float, 256> e4m3_numbers() {
  std::array<float, 256> numbers{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    // Of the least exponent, which subnormal numbers share.
    float number = static_cast<float>(exponent == 0 ? mantissa : mantissa + 8) / 512;
    for (int i = 1; i < exponent; ++i) number *= 2;
    if ((code & kE4M3Magnitude) == kE4M3Magnitude) number = std::numeric_limits<float>::quiet_NaN();
    numbers[static_cast<size_t>(code)] = code < 128 ? number : -number;
  }
  return numbers;
}

constexpr std::array<float, 256> kE4M3 = e4m3_numbers();

bool unpack_e4m3(const uint8_t* codes, int64_t count, float scale, void* values) {
  auto* to = static_cast<float*>(values);
  for (int64_t at = 0; at < count; ++at) to[at] = kE4M3[codes[at]] * scale;
  return scale != 0 ||
         std::all_of(codes, codes + count, [](uint8_t code) { return (code & kE4M3Magnitude) == 0; });
}

constexpr PackedFormat kMxfp4{4, at::kBFloat16, unpack_e2m1};
constexpr PackedFormat kFp8{8, at::kFloat, unpack_e4m3};

}  // namespace

const PackedFormat* packed_format(const std::string& dtype) {
  if (dtype == "MXFP4") return &kMxfp4;
  if (dtype == "F8_E4M3") return &kFp8;
  return nullptr;
}

}  // namespace troupe
