// Penalties, bias, bad words and masks of sequences.
#include "rollout/logit_changes.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace troupe {

void LogitChangeLists::add(int64_t row, const Sequence& sequence) {
  const RequestSampling& s = sequence.request.sampling;
  const auto length = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  kernels::RowChanges own{.row = row,
                          .seen_begin = length(seen),
                          .bias_begin = length(biases),
                          .mask_begin = length(words),
                          .repetition_penalty = s.repetition_penalty,
                          .frequency_penalty = s.frequency_penalty,
                          .presence_penalty = s.presence_penalty};
  if (s.penalises()) {
    for (const auto& [token, times] : sequence.seen) seen.push_back({token, times});
  }
  for (const auto& [token, bias] : s.logit_bias) biases.push_back({token, bias});
  // Forbids the last token of every bad word whose other tokens have just been.
  for (const std::vector<int32_t>& word : s.bad_words) {
    const auto before = static_cast<std::ptrdiff_t>(word.size()) - 1;
    if (before > static_cast<std::ptrdiff_t>(sequence.tokens.size())) continue;
    if (std::equal(word.begin(), word.end() - 1, sequence.tokens.end() - before))
      biases.push_back({word.back(), -std::numeric_limits<float>::infinity()});
  }
  std::stable_sort(biases.begin() + own.bias_begin, biases.end(),
                   [](const auto& a, const auto& b) { return a.token < b.token; });
  if (s.constrained) words.insert(words.end(), sequence.mask.begin(), sequence.mask.end());
  own.seen_end = length(seen);
  own.bias_end = length(biases);
  own.mask_words = length(words) - own.mask_begin;
  rows.push_back(own);
}

}  // namespace troupe
