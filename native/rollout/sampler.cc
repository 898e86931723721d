// Top-k, top-p and the inverse of the cumulative distribution for one row.
#include "rollout/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/logit_blocks_kernels.h"

TROUPE_DECLARE_TABLES(LogitBlockKernels, logit_block_table)

namespace troupe::kernels {
const LogitBlockKernels& logit_block_kernels() {
  return TROUPE_PICK_TABLE(logit_block_table);
}
}  // namespace troupe::kernels

namespace troupe {
namespace {

using kernels::kLogitBlock;

int64_t blocks_of(int64_t vocab) {
  return (vocab + kLogitBlock - 1) / kLogitBlock;
}

// A row with what its numbers per block add up to.
struct Row {
  const LogitRow& logits;
  double temperature;
  float inv_temperature;
  float max;
  double sum;

  Row(const LogitRow& logits, const SamplerOptions& options)
      : logits(logits),
        temperature(options.temperature == 0 ? 1 : options.temperature),
        inv_temperature(inverse_temperature(options)),
        max(-std::numeric_limits<float>::infinity()),
        sum(0) {
    for (int64_t b = 0; b < blocks(); ++b) {
      // NaN stays: no comparison with it holds.
      if (!(logits.maxima[b] <= max)) max = logits.maxima[b];
      if (std::isnan(max)) break;
    }
    if (finite()) {
      for (int64_t b = 0; b < blocks(); ++b) sum += logits.sums[b];
    }
  }

  bool finite() const { return std::isfinite(max); }
  int64_t blocks() const { return blocks_of(logits.vocab); }
  int64_t block_size(int64_t block) const {
    return std::min(kLogitBlock, logits.vocab - block * kLogitBlock);
  }
  bool has(int64_t block) const { return logits.blocks[static_cast<size_t>(block)] != nullptr; }
  const float* block(int64_t block) const { return logits.blocks[static_cast<size_t>(block)]; }
  float operator[](int64_t token) const { return block(token / kLogitBlock)[token % kLogitBlock]; }
};

float log_prob(const Row& row, int64_t token) {
  const double z = (static_cast<double>(row[token]) - row.max) / row.temperature;
  return static_cast<float>(z - std::log(row.sum));
}

int64_t argmax_block(const Row& row) {
  return std::find(row.logits.maxima, row.logits.maxima + row.blocks(), row.max) - row.logits.maxima;
}

int64_t argmax(const Row& row) {
  const int64_t block = argmax_block(row);
  const float* begin = row.block(block);
  return block * kLogitBlock + (std::find(begin, begin + row.block_size(block), row.max) - begin);
}

// First index whose running sum of weights exceeds `target`; the last one of positive weight where
// rounding leaves none. Zero weights are never chosen.
int64_t invert(const float* weights, int64_t n, double target) {
  int64_t last = 0;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (weights[i] <= 0) continue;
    last = i;
    sum += weights[i];
    if (sum > target) break;
  }
  return last;
}

// The block in which the inverse of the whole row's distribution lies, and the weight before it.
struct Position {
  int64_t block;
  double before;
};
Position find_in_whole(const Row& row, double target) {
  Position position{0, 0};
  double before = 0;
  for (int64_t b = 0; b < row.blocks(); ++b) {
    const double block_sum = row.logits.sums[b];
    if (block_sum > 0) position = {b, before};
    before += block_sum;
    if (before > target) break;
  }
  return position;
}

int64_t invert_whole(const Row& row, double uniform) {
  const double target = uniform * row.sum;
  const auto [block, before] = find_in_whole(row, target);
  float weights[kLogitBlock];
  const int64_t n = row.block_size(block);
  kernels::logit_block_kernels().weights(row.block(block), n, row.max, row.inv_temperature, weights);
  return block * kLogitBlock + invert(weights, n, target - before);
}

struct Candidates {
  std::vector<int32_t> tokens;  // most probable first
  std::vector<float> weights;
};

// The count-th largest block maximum, which is no larger than the count-th largest logit: only blocks that
// reach it can hold one of the `count` most probable tokens.
float threshold_of(const Row& row, int64_t count) {
  if (count > row.blocks()) return -std::numeric_limits<float>::infinity();
  std::vector<float> maxima(row.logits.maxima, row.logits.maxima + row.blocks());
  std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(), std::greater<float>());
  return maxima[static_cast<size_t>(count - 1)];
}

// The `count` most probable tokens; none when a block that may hold one is not at hand.
std::optional<std::vector<int32_t>> most_probable(const Row& row, int64_t count) {
  const float threshold = threshold_of(row, count);
  std::vector<int32_t> tokens;
  for (int64_t b = 0; b < row.blocks(); ++b) {
    if (row.logits.maxima[b] < threshold) continue;
    if (!row.has(b)) return std::nullopt;
    const float* logits = row.block(b);
    for (int64_t i = 0; i < row.block_size(b); ++i) {
      if (logits[i] >= threshold) tokens.push_back(static_cast<int32_t>(b * kLogitBlock + i));
    }
  }
  const auto more_probable = [&row](int32_t a, int32_t b) {
    const float x = row[a], y = row[b];
    return x > y || (x == y && a < b);
  };
  if (static_cast<int64_t>(tokens.size()) > count) {
    std::nth_element(tokens.begin(), tokens.begin() + count, tokens.end(), more_probable);
    tokens.resize(static_cast<size_t>(count));
  }
  std::sort(tokens.begin(), tokens.end(), more_probable);
  return tokens;
}

Candidates with_weights(const Row& row, std::vector<int32_t> tokens) {
  Candidates result;
  std::vector<float> logits(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) logits[i] = row[tokens[i]];
  result.weights.resize(tokens.size());
  kernels::logit_block_kernels().weights(logits.data(), static_cast<int64_t>(logits.size()), row.max,
                                         row.inv_temperature, result.weights.data());
  result.tokens = std::move(tokens);
  return result;
}

// Cuts to the shortest prefix whose weight reaches `mass`; false when all together do not reach it.
bool cut_to_mass(Candidates& candidates, double mass) {
  double sum = 0;
  for (size_t i = 0; i < candidates.weights.size(); ++i) {
    sum += candidates.weights[i];
    if (sum >= mass) {
      candidates.tokens.resize(i + 1);
      candidates.weights.resize(i + 1);
      return true;
    }
  }
  return false;
}

// Cuts off what is less than `least` times as probable as the first; false when nothing is.
bool cut_improbable(Candidates& candidates, double least) {
  for (size_t i = 0; i < candidates.weights.size(); ++i) {
    if (candidates.weights[i] >= least * candidates.weights[0]) continue;
    candidates.tokens.resize(i);
    candidates.weights.resize(i);
    return true;
  }
  return false;
}

bool limited(const SamplerOptions& options, int64_t vocab) {
  return options.top_k > 0 && options.top_k < vocab;
}
bool filtered(const SamplerOptions& options, int64_t vocab) {
  return limited(options, vocab) || options.top_p < 1 || options.min_p > 0;
}

// Where top_p or min_p alone is set, few tokens usually hold the mass.
constexpr int64_t kFewTokens = 64;

int64_t first_count(const SamplerOptions& options, int64_t vocab) {
  if (limited(options, vocab)) return options.top_k;
  return options.top_p < 1 || options.min_p > 0 ? std::min(kFewTokens, vocab) : vocab;
}

// The kept set; none when a block that may hold one of it is not at hand.
std::optional<Candidates> keep(const Row& row, const SamplerOptions& options) {
  const int64_t vocab = row.logits.vocab;
  for (int64_t count = first_count(options, vocab);; count = std::min(count * 8, vocab)) {
    std::optional<std::vector<int32_t>> tokens = most_probable(row, count);
    if (!tokens) return std::nullopt;
    Candidates candidates = with_weights(row, std::move(*tokens));
    // Widened only while these few do not hold the mass, nor reach down to what is too improbable.
    bool complete = limited(options, vocab) || count == vocab;
    if (options.top_p < 1) {
      double sum = row.sum;
      if (limited(options, vocab)) {
        sum = 0;
        for (const float weight : candidates.weights) sum += weight;
      }
      complete = cut_to_mass(candidates, options.top_p * sum) || complete;
    }
    if (options.min_p > 0) complete = cut_improbable(candidates, options.min_p) || complete;
    if (complete) return candidates;
  }
}

}  // namespace

float inverse_temperature(const SamplerOptions& options) {
  const double temperature = options.temperature == 0 ? 1 : options.temperature;
  // Finite even for a subnormal temperature: 0 * infinity would make the largest logit NaN.
  return static_cast<float>(
      std::min(1 / temperature, static_cast<double>(std::numeric_limits<float>::max())));
}

std::vector<int64_t> blocks_to_read(const LogitRow& logits, const SamplerOptions& options, double uniform) {
  const Row row(logits, options);
  if (!row.finite()) return {};
  if (options.temperature == 0) return {argmax_block(row)};
  if (!filtered(options, logits.vocab)) return {find_in_whole(row, uniform * row.sum).block};
  const float threshold = threshold_of(row, first_count(options, logits.vocab));
  std::vector<int64_t> blocks;
  for (int64_t b = 0; b < row.blocks(); ++b) {
    if (logits.maxima[b] >= threshold) blocks.push_back(b);
  }
  return blocks;
}

std::optional<Sampled> sample_row(const LogitRow& logits, const SamplerOptions& options, double uniform) {
  const Row row(logits, options);
  Sampled result;
  result.finite = row.finite();
  if (!result.finite) return result;
  int64_t token;
  if (options.temperature == 0) {
    token = argmax(row);
  } else if (filtered(options, logits.vocab)) {
    const std::optional<Candidates> kept = keep(row, options);
    if (!kept) return std::nullopt;
    double sum = 0;
    for (const float weight : kept->weights) sum += weight;
    token = kept->tokens[static_cast<size_t>(
        invert(kept->weights.data(), static_cast<int64_t>(kept->weights.size()), uniform * sum))];
  } else {
    token = invert_whole(row, uniform);
  }
  result.token = static_cast<int32_t>(token);
  result.log_prob = log_prob(row, token);
  return result;
}

namespace {

// A row in memory, all of its blocks at hand.
struct WholeRow {
  std::vector<float> maxima;
  std::vector<double> sums;
  LogitRow row;

  WholeRow(const float* logits, int64_t vocab, const SamplerOptions& options)
      : maxima(static_cast<size_t>(blocks_of(vocab))), sums(maxima.size()) {
    const auto& kernels = kernels::logit_block_kernels();
    const float max = kernels.block_max(logits, vocab, maxima.data());
    if (std::isfinite(max)) {
      kernels.block_sums(logits, vocab, max, inverse_temperature(options), sums.data());
    } else {
      maxima[0] = max;  // which blocks are bad does not matter
    }
    row = {vocab, maxima.data(), sums.data(), {}};
    for (int64_t begin = 0; begin < vocab; begin += kLogitBlock) row.blocks.push_back(logits + begin);
  }
};

}  // namespace

Sampled sample_token(const float* logits, int64_t vocab, const SamplerOptions& options, double uniform) {
  const WholeRow whole(logits, vocab, options);
  return *sample_row(whole.row, options, uniform);
}

std::vector<int32_t> kept_tokens(const float* logits, int64_t vocab, const SamplerOptions& options) {
  const WholeRow whole(logits, vocab, options);
  const Row row(whole.row, options);
  if (!row.finite()) return {};
  return keep(row, options)->tokens;
}

}  // namespace troupe
