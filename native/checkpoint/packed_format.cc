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

constexpr uint32_t kE4M3Magnitude = 0x7f;  // also the bits of NaN
constexpr uint32_t kE4M3Normal = 0x08;     // the least one; what is below is multiples of 2^-9
constexpr int kMantissaShift = 23 - 3;
constexpr uint32_t kBias = uint32_t{127 - 7} << 23;

// Without a branch or a subnormal number on the way: the loop over it becomes vector instructions.
float e4m3(uint8_t code) {
  const uint32_t magnitude = code & kE4M3Magnitude;
  const uint32_t normal = (magnitude << kMantissaShift) + kBias;
  const uint32_t small =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9F);
  const uint32_t number = magnitude < kE4M3Normal ? small : normal;
  const uint32_t nan = std::bit_cast<uint32_t>(std::numeric_limits<float>::quiet_NaN());
  const uint32_t bits = magnitude == kE4M3Magnitude ? nan : number;
  return std::bit_cast<float>(bits | (uint32_t{code} & 0x80) << 24);
}

bool unpack_e4m3(const uint8_t* codes, int64_t count, float scale, void* values) {
  auto* to = static_cast<float*>(values);
  for (int64_t at = 0; at < count; ++at) to[at] = e4m3(codes[at]) * scale;
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
