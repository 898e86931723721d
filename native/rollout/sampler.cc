#include "rollout/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/sampling_kernels.h"

TROUPE_DECLARE_TABLES(SamplingKernels, sampling_table)

namespace troupe::kernels {
const SamplingKernels& sampling_kernels() {
  return TROUPE_PICK_TABLE(sampling_table);
}
}  // namespace troupe::kernels

namespace troupe {
namespace {

using kernels::kSamplingBlock;

// One row of logits and what the passes over all of it found.
struct Row {
  const float* logits;
  int64_t vocab;
  float max;
  double temperature;
  float inv_temperature;
  std::vector<float> maxima;  // per block
  std::vector<double> sums;   // per block, of the weights exp((logit - max) / temperature)
  double sum;

  int64_t blocks() const { return (vocab + kSamplingBlock - 1) / kSamplingBlock; }
};

// Returns false when the logits are no distribution.
bool scan(const float* logits, int64_t vocab, double temperature, Row& row) {
  row.logits = logits;
  row.vocab = vocab;
  row.temperature = temperature;
  // Finite even for a subnormal temperature: 0 * infinity would make the largest logit NaN.
  row.inv_temperature =
      static_cast<float>(std::min(1 / temperature, static_cast<double>(std::numeric_limits<float>::max())));
  row.maxima.resize(static_cast<size_t>(row.blocks()));
  row.sums.resize(static_cast<size_t>(row.blocks()));
  const auto& kernels = kernels::sampling_kernels();
  row.max = kernels.block_max(logits, vocab, row.maxima.data());
  if (!std::isfinite(row.max)) return false;
  row.sum = kernels.block_sums(logits, vocab, row.max, row.inv_temperature, row.sums.data());
  return true;
}

float log_prob(const Row& row, int64_t token) {
  const double z = (static_cast<double>(row.logits[token]) - row.max) / row.temperature;
  return static_cast<float>(z - std::log(row.sum));
}

int64_t argmax(const Row& row) {
  const auto block = std::find(row.maxima.begin(), row.maxima.end(), row.max) - row.maxima.begin();
  return std::find(row.logits + block * kSamplingBlock, row.logits + row.vocab, row.max) - row.logits;
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

int64_t invert_whole(const Row& row, double uniform) {
  const double target = uniform * row.sum;
  double before = 0;
  int64_t chosen = 0;
  double chosen_before = 0;
  for (int64_t b = 0; b < row.blocks(); ++b) {
    const double block_sum = row.sums[static_cast<size_t>(b)];
    if (block_sum > 0) {
      chosen = b;
      chosen_before = before;
    }
    before += block_sum;
    if (before > target) break;
  }
  float weights[kSamplingBlock];
  const int64_t begin = chosen * kSamplingBlock;
  const int64_t n = std::min(kSamplingBlock, row.vocab - begin);
  kernels::sampling_kernels().weights(row.logits + begin, n, row.max, row.inv_temperature, weights);
  return begin + invert(weights, n, target - chosen_before);
}

struct Candidates {
  std::vector<int32_t> tokens;  // most probable first
  std::vector<float> weights;
};

// The `count` most probable tokens. The count-th largest block maximum is no larger than the
// count-th largest logit, so only blocks that reach it can hold one of them.
std::vector<int32_t> most_probable(const Row& row, int64_t count) {
  float threshold = -std::numeric_limits<float>::infinity();
  if (count <= row.blocks()) {
    std::vector<float> maxima = row.maxima;
    std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(), std::greater<float>());
    threshold = maxima[static_cast<size_t>(count - 1)];
  }
  std::vector<int32_t> tokens;
  for (int64_t b = 0; b < row.blocks(); ++b) {
    if (row.maxima[static_cast<size_t>(b)] < threshold) continue;
    const int64_t end = std::min(row.vocab, (b + 1) * kSamplingBlock);
    for (int64_t i = b * kSamplingBlock; i < end; ++i) {
      if (row.logits[i] >= threshold) tokens.push_back(static_cast<int32_t>(i));
    }
  }
  const auto more_probable = [&row](int32_t a, int32_t b) {
    const float x = row.logits[a], y = row.logits[b];
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
  for (size_t i = 0; i < tokens.size(); ++i) logits[i] = row.logits[tokens[i]];
  result.weights.resize(tokens.size());
  kernels::sampling_kernels().weights(logits.data(), static_cast<int64_t>(logits.size()), row.max,
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

Candidates keep(const Row& row, const SamplerOptions& options) {
  const bool limited = options.top_k > 0 && options.top_k < row.vocab;
  const int64_t limit = limited ? options.top_k : row.vocab;
  if (options.top_p >= 1) return with_weights(row, most_probable(row, limit));
  if (limited) {
    Candidates candidates = with_weights(row, most_probable(row, limit));
    double sum = 0;
    for (const float weight : candidates.weights) sum += weight;
    cut_to_mass(candidates, options.top_p * sum);
    return candidates;
  }
  // Few tokens usually hold the mass: widen the search only while they do not.
  for (int64_t count = std::min<int64_t>(64, limit);; count = std::min(count * 8, limit)) {
    Candidates candidates = with_weights(row, most_probable(row, count));
    if (cut_to_mass(candidates, options.top_p * row.sum) || count == limit) return candidates;
  }
}

}  // namespace

Sampled sample_token(const float* logits, int64_t vocab, const SamplerOptions& options, double uniform) {
  const bool greedy = options.temperature == 0;
  Row row;
  Sampled result;
  result.finite = scan(logits, vocab, greedy ? 1 : options.temperature, row);
  if (!result.finite) return result;
  int64_t token;
  if (greedy) {
    token = argmax(row);
  } else if ((options.top_k > 0 && options.top_k < vocab) || options.top_p < 1) {
    const Candidates kept = keep(row, options);
    double sum = 0;
    for (const float weight : kept.weights) sum += weight;
    token = kept.tokens[static_cast<size_t>(
        invert(kept.weights.data(), static_cast<int64_t>(kept.weights.size()), uniform * sum))];
  } else {
    token = invert_whole(row, uniform);
  }
  result.token = static_cast<int32_t>(token);
  result.log_prob = log_prob(row, token);
  return result;
}

std::vector<int32_t> kept_tokens(const float* logits, int64_t vocab, const SamplerOptions& options) {
  Row row;
  if (!scan(logits, vocab, options.temperature, row)) return {};
  return keep(row, options).tokens;
}

}  // namespace troupe
