// From blocks and scales to bfloat16, by a table for each scale.
#include "checkpoint/mxfp4.h"

#include <ATen/ATen.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/parallel.h"

namespace troupe {

namespace {

constexpr int kScaleBias = 127;
// Magnitudes of E2M1, by their three bits; the fourth is the sign.
constexpr std::array<float, 8> kMagnitudes = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};

// The bits in bfloat16 of the sixteen values under a scale. A float32 of them ends in zeros.
std::array<uint16_t, 16> scaled_values(uint8_t scale) {
  std::array<uint16_t, 16> bits{};
  for (size_t code = 0; code < bits.size(); ++code) {
    const float magnitude = scale == kMxfp4NanScale ? std::numeric_limits<float>::quiet_NaN()
                                                    : std::ldexp(kMagnitudes[code % 8], scale - kScaleBias);
    bits[code] = static_cast<uint16_t>(std::bit_cast<uint32_t>(code < 8 ? magnitude : -magnitude) >> 16);
  }
  return bits;
}

}  // namespace

at::Tensor dequantize_mxfp4(const at::Tensor& blocks, const at::Tensor& scales) {
  const int64_t rows = blocks.size(0), count = scales.size(1);
  const at::Tensor values = at::empty({rows, count * kMxfp4Block}, blocks.options().dtype(at::kBFloat16));
  if (simulated(values)) return values;
  std::array<std::array<uint16_t, 16>, 256> tables;
  for (size_t scale = 0; scale < tables.size(); ++scale)
    tables[scale] = scaled_values(static_cast<uint8_t>(scale));
  const uint8_t* pairs = blocks.const_data_ptr<uint8_t>();
  const uint8_t* powers = scales.const_data_ptr<uint8_t>();
  auto* bits = reinterpret_cast<uint16_t*>(values.mutable_data_ptr<at::BFloat16>());
  parallel_items(rows, [&](int64_t row) {
    for (int64_t block = row * count; block < (row + 1) * count; ++block) {
      const std::array<uint16_t, 16>& table = tables[powers[block]];
      const uint8_t* from = pairs + block * kMxfp4Block / 2;
      uint16_t* to = bits + block * kMxfp4Block;
      for (int64_t at = 0; at < kMxfp4Block / 2; ++at) {
        to[2 * at] = table[from[at] & 15];
        to[2 * at + 1] = table[from[at] >> 4];
      }
    }
  });
  return values;
}

}  // namespace troupe
