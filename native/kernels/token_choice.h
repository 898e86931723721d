// What is wanted of one row of logits, and the arithmetic that all ways to choose a token share.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/host_device.h"
#include "kernels/cpu/logit_blocks_kernels.h"

namespace troupe {

struct SamplerOptions {
  double temperature = 1;  // 0 = greedy: top_k and top_p then change nothing
  int64_t top_k = 0;       // 0 = off
  double top_p = 1;        // 1 = off
  double min_p = 0;        // 0 = off
};

}  // namespace troupe

// The same on a CPU and in a CUDA kernel: every sum runs in one order, whoever computes it.
namespace troupe::kernels {

// ---- what a device is told of a row, and says of it ----

struct TokenWish {
  SamplerOptions options;
  double uniform = 0;    // in [0, 1)
  int32_t target = -1;   // its log-probability is wanted; -1: a token is to be sampled
  int32_t changed = -1;  // the row of the changed logits that it is sampled from; -1: its own
  int32_t top = 0;       // how many of the most likely tokens are wanted, too
  int32_t unused = 0;
};

// A token of the text so far: penalties apply to it. times: in the response; 0: only in the prompt.
struct SeenToken {
  int32_t token, times;
};
struct TokenBias {
  int32_t token;
  float bias;  // added; -infinity forbids the token, whatever it had
};
// The changes of one row, as ranges of the arrays of all rows.
struct RowChanges {
  int64_t row = 0;                         // of the logits
  int64_t seen_begin = 0, seen_end = 0;    // no token twice
  int64_t bias_begin = 0, bias_end = 0;    // those of one token beside each other, in their order
  int64_t mask_begin = 0, mask_words = 0;  // a bit per allowed token; no words: all are
  double repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
};
struct LogitChanges {
  const SeenToken* seen;
  const TokenBias* biases;
  const uint32_t* words;
};

// kTooWide: more candidates than a device keeps (kMostCandidates); nothing was chosen.
// kNoneLeft: the model's logits are finite, and what the wish makes of them is not, or leaves none.
enum ChoiceOutcome : int32_t { kChosen = 0, kNotFinite = 1, kTooWide = 2, kNoneLeft = 3 };
// Of a row in the result: outcome, token, log-probability, then (token, log-probability) of the most likely.
// Log-probabilities are the bits of a float.
TROUPE_HOST_DEVICE constexpr int64_t choice_words(int64_t top) {
  return 3 + 2 * top;
}

// ---- arithmetic ----

TROUPE_HOST_DEVICE constexpr int64_t logit_blocks(int64_t vocab) {
  return (vocab + kLogitBlock - 1) / kLogitBlock;
}

TROUPE_HOST_DEVICE inline double temperature_of(const SamplerOptions& options) {
  return options.temperature == 0 ? 1 : options.temperature;
}
// Finite even for a subnormal temperature: 0 * infinity would make the largest logit NaN.
TROUPE_HOST_DEVICE inline float inverse_temperature(const SamplerOptions& options) {
  constexpr double kMost = std::numeric_limits<float>::max();
  const double inverse = 1 / temperature_of(options);
  return static_cast<float>(inverse < kMost ? inverse : kMost);
}
TROUPE_HOST_DEVICE inline bool limited(const SamplerOptions& options, int64_t vocab) {
  return options.top_k > 0 && options.top_k < vocab;
}
TROUPE_HOST_DEVICE inline bool filtered(const SamplerOptions& options, int64_t vocab) {
  return limited(options, vocab) || options.top_p < 1 || options.min_p > 0;
}

// How many of the most probable tokens are looked at first, and how many after `count`: where top_p or min_p
// alone is set, few tokens usually hold the mass.
TROUPE_HOST_DEVICE inline int64_t first_count(const SamplerOptions& options, int64_t vocab) {
  constexpr int64_t kFewTokens = 64;
  if (limited(options, vocab)) return options.top_k;
  return kFewTokens < vocab ? kFewTokens : vocab;
}
TROUPE_HOST_DEVICE inline int64_t next_count(int64_t count, int64_t vocab) {
  return count < vocab / 8 ? count * 8 : vocab;
}

// The sums of blocks are added up in groups, and these in their order, so that many threads can.
constexpr int64_t kSumGroup = 64;
TROUPE_HOST_DEVICE constexpr int64_t sum_groups(int64_t blocks) {
  return (blocks + kSumGroup - 1) / kSumGroup;
}
TROUPE_HOST_DEVICE inline double group_sum(const double* sums, int64_t blocks, int64_t group) {
  double sum = 0;
  for (int64_t b = group * kSumGroup; b < blocks && b < (group + 1) * kSumGroup; ++b) sum += sums[b];
  return sum;
}
template <typename Value>
TROUPE_HOST_DEVICE inline double total(const Value* values, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += values[i];
  return sum;
}

// The first of values [n] at which their running sum exceeds `target`, and the sum before it; the last
// positive one where rounding leaves none. Zeros are never chosen.
struct Position {
  int64_t index = 0;
  double before = 0;
};
template <typename Value>
TROUPE_HOST_DEVICE inline Position find_position(const Value* values, int64_t n, double target) {
  Position found;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!(values[i] > 0)) continue;
    found = {i, sum};
    sum += values[i];
    if (sum > target) break;
  }
  return found;
}
// The block in which the inverse of a whole row's distribution lies, and the weight before it.
TROUPE_HOST_DEVICE inline Position find_block(const double* groups, const double* sums, int64_t blocks,
                                              double target) {
  const Position group = find_position(groups, sum_groups(blocks), target);
  const int64_t begin = group.index * kSumGroup;
  const int64_t n = blocks - begin < kSumGroup ? blocks - begin : kSumGroup;
  const Position block = find_position(sums + begin, n, target - group.before);
  return {begin + block.index, group.before + block.before};
}

// Of candidates with these weights, the most probable first: cuts `n` to the shortest prefix whose weight
// reaches `mass`; false when all together do not reach it.
TROUPE_HOST_DEVICE inline bool cut_to_mass(const float* weights, int64_t& n, double mass) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += weights[i];
    if (sum < mass) continue;
    n = i + 1;
    return true;
  }
  return false;
}
// Cuts off what is less than `least` times as probable as the first; false when nothing is.
TROUPE_HOST_DEVICE inline bool cut_improbable(const float* weights, int64_t& n, double least) {
  for (int64_t i = 0; i < n; ++i) {
    if (weights[i] >= least * weights[0]) continue;
    n = i;
    return true;
  }
  return false;
}
// Cuts the `n` most probable tokens to those that are kept; false when others may be kept, too. `sum`: of the
// weights of all tokens.
TROUPE_HOST_DEVICE inline bool cut_to_kept(const SamplerOptions& options, int64_t vocab, const float* weights,
                                           double sum, int64_t& n) {
  bool complete = limited(options, vocab) || n == vocab;
  if (options.top_p < 1) {
    const double whole = limited(options, vocab) ? total(weights, n) : sum;
    complete = cut_to_mass(weights, n, options.top_p * whole) || complete;
  }
  if (options.min_p > 0) complete = cut_improbable(weights, n, options.min_p) || complete;
  return complete;
}

TROUPE_HOST_DEVICE inline float choice_log_prob(const SamplerOptions& options, float logit, float max,
                                                double sum) {
  const double z = (static_cast<double>(logit) - max) / temperature_of(options);
  return static_cast<float>(z - log(sum));
}

// A logit after the penalties for its token.
TROUPE_HOST_DEVICE inline float penalised(const RowChanges& by, int32_t times, float logit) {
  double value = logit;
  value = value > 0 ? value / by.repetition_penalty : value * by.repetition_penalty;
  value -= by.frequency_penalty * times;
  if (times > 0) value -= by.presence_penalty;
  return static_cast<float>(value);
}
TROUPE_HOST_DEVICE inline float biased(float logit, float bias) {
  return bias == -std::numeric_limits<float>::infinity() ? bias : logit + bias;
}

}  // namespace troupe::kernels
