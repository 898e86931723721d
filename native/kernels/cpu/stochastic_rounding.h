// Rounding to bfloat16 that is right on average, with the same bits on every device.
#pragma once

#include <cstdint>

#include "base/host_device.h"

// A weight of 0.02 has neighbours in bfloat16 that are 1.2e-4 away: updates of 1e-6, to the nearest, would
// all be lost. x goes to its upper neighbour with the probability of its way there, to the lower one
// otherwise (Gupta et al. 2015, arXiv:1502.02551).
namespace troupe::kernels {

// Names the random numbers of one update of one flat buffer. Those of an element depend on its place in the
// whole buffer alone: neither on threads nor on how many ranks share it. Elements that are 2^32 apart have
// the same.
struct RoundingStream {
  uint32_t key = 0, second_key = 0;
  int64_t first = 0;  // place of element 0 of what is given

  RoundingStream from(int64_t element) const { return {key, second_key, first + element}; }
};

struct RandomBits {
  uint32_t a, b;
};

// The finaliser of MurmurHash3 (Appleby): every bit of x changes about half of the result's.
TROUPE_HOST_DEVICE static inline uint32_t mixed(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

TROUPE_HOST_DEVICE static inline RandomBits random_bits(const RoundingStream& stream, int64_t i) {
  const uint32_t a = mixed(static_cast<uint32_t>(stream.first + i) * 0x9e3779b1u + stream.key);
  return {a, mixed(a ^ stream.second_key)};
}

// The bfloat16 for a float32 with these bits; `random` has 16 bits. What bfloat16 has stays as it is,
// infinity too, and a NaN stays a (quiet) NaN.
TROUPE_HOST_DEVICE static inline uint16_t rounded_stochastically(uint32_t bits, uint32_t random) {
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t up = magnitude < 0x7f800000u ? random : 0u;
  const uint32_t quiet = magnitude > 0x7f800000u ? 0x40u : 0u;
  return static_cast<uint16_t>(((bits + up) >> 16) | quiet);
}

}  // namespace troupe::kernels
