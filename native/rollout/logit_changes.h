// What the requests of a step change about their logits, as lists that a device is given.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/token_choice.h"
#include "rollout/sequence.h"

namespace troupe {

struct LogitChangeLists {
  std::vector<kernels::RowChanges> rows;
  std::vector<kernels::SeenToken> seen;
  std::vector<kernels::TokenBias> biases;
  std::vector<uint32_t> words;

  // Adds what the next token of `sequence` is under: penalties, bias, bad words, its mask.
  void add(int64_t row, const Sequence& sequence);
  kernels::LogitChanges view() const { return {seen.data(), biases.data(), words.data()}; }
};

}  // namespace troupe
