// Random numbers by (seed, counter): independent of batch and order.
#pragma once

#include <cstdint>

namespace troupe {

// Uniform numbers that are a function of (seed, position) alone: Philox4x32-10 (Salmon, Moraes, Dror,
// Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) with the seed as key and the position
// as counter. A sample's stream therefore needs no state and does not depend on what else is sampled.
struct PhiloxBlock {
  uint32_t word[4];
};

inline PhiloxBlock philox4x32_10(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter.word[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter.word[2];
    counter = {
        {static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// In [0, 1), 53 random bits.
inline double uniform(uint64_t seed, uint64_t position) {
  const PhiloxBlock block =
      philox4x32_10({{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0}},
                    static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const uint64_t high = block.word[0] >> 5, low = block.word[1] >> 6;
  return static_cast<double>((high << 26) | low) * 0x1p-53;
}

}  // namespace troupe
