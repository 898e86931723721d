// Top-k, top-p and the inverse of the cumulative distribution for one row.
#include "rollout/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "kernels/cpu/isa.h"

TROUPE_DECLARE_TABLES(LogitBlockKernels, logit_block_table)

namespace troupe::kernels {
const LogitBlockKernels& logit_block_kernels() {
  return TROUPE_PICK_TABLE(logit_block_table);
}
}  // namespace troupe::kernels

namespace troupe {
namespace {

using kernels::kLogitBlock;

// A row with what passes over all of it say of its blocks.
struct Row {
  const float* logits;
  int64_t vocab;
  float inverse_temperature;
  std::vector<float> maxima;
  std::vector<double> sums, groups;
  float max;
  double sum = 0;

  Row(const float* logits, int64_t vocab, const SamplerOptions& options)
      : logits(logits),
        vocab(vocab),
        inverse_temperature(kernels::inverse_temperature(options)),
        maxima(static_cast<size_t>(kernels::logit_blocks(vocab))),
        sums(maxima.size()),
        groups(static_cast<size_t>(kernels::sum_groups(blocks()))) {
    const auto& passes = kernels::logit_block_kernels();
    max = passes.block_max(logits, vocab, maxima.data());
    if (!finite()) return;
    passes.block_sums(logits, vocab, max, inverse_temperature, sums.data());
    for (size_t g = 0; g < groups.size(); ++g)
      groups[g] = kernels::group_sum(sums.data(), blocks(), static_cast<int64_t>(g));
    sum = kernels::total(groups.data(), static_cast<int64_t>(groups.size()));
  }

  bool finite() const { return std::isfinite(max); }
  int64_t blocks() const { return static_cast<int64_t>(maxima.size()); }
  int64_t block_size(int64_t block) const { return std::min(kLogitBlock, vocab - block * kLogitBlock); }
  float operator[](int64_t token) const { return logits[token]; }
};

int64_t argmax(const Row& row) {
  const int64_t block = std::find(row.maxima.begin(), row.maxima.end(), row.max) - row.maxima.begin();
  const float* begin = row.logits + block * kLogitBlock;
  return std::find(begin, begin + row.block_size(block), row.max) - row.logits;
}

int64_t invert_whole(const Row& row, double uniform) {
  const double target = uniform * row.sum;
  const auto [block, before] = kernels::find_block(row.groups.data(), row.sums.data(), row.blocks(), target);
  float weights[kLogitBlock];
  const int64_t n = row.block_size(block);
  kernels::logit_block_kernels().weights(row.logits + block * kLogitBlock, n, row.max,
                                         row.inverse_temperature, weights);
  return block * kLogitBlock + kernels::find_position(weights, n, target - before).index;
}

struct Candidates {
  std::vector<int32_t> tokens;  // most probable first
  std::vector<float> weights;
};

// The count-th largest block maximum, which is no larger than the count-th largest logit: only blocks that
// reach it can hold one of the `count` most probable tokens.
float threshold_of(const Row& row, int64_t count) {
  if (count > row.blocks()) return -std::numeric_limits<float>::infinity();
  std::vector<float> maxima = row.maxima;
  std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(), std::greater<float>());
  return maxima[static_cast<size_t>(count - 1)];
}

// The `count` most probable tokens.
std::vector<int32_t> most_probable(const Row& row, int64_t count) {
  const float threshold = threshold_of(row, count);
  std::vector<int32_t> tokens;
  for (int64_t b = 0; b < row.blocks(); ++b) {
    if (row.maxima[static_cast<size_t>(b)] < threshold) continue;
    const int64_t begin = b * kLogitBlock;
    for (int64_t i = begin; i < begin + row.block_size(b); ++i) {
      if (row[i] >= threshold) tokens.push_back(static_cast<int32_t>(i));
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
                                         row.inverse_temperature, result.weights.data());
  result.tokens = std::move(tokens);
  return result;
}

// The kept set.
Candidates keep(const Row& row, const SamplerOptions& options) {
  int64_t count =
      kernels::filtered(options, row.vocab) ? kernels::first_count(options, row.vocab) : row.vocab;
  for (;; count = kernels::next_count(count, row.vocab)) {
    Candidates candidates = with_weights(row, most_probable(row, count));
    int64_t kept = count;
    if (!kernels::cut_to_kept(options, row.vocab, candidates.weights.data(), row.sum, kept)) continue;
    candidates.tokens.resize(static_cast<size_t>(kept));
    candidates.weights.resize(static_cast<size_t>(kept));
    return candidates;
  }
}

int64_t choose(const Row& row, const SamplerOptions& options, double uniform) {
  if (options.temperature == 0) return argmax(row);
  if (!kernels::filtered(options, row.vocab)) return invert_whole(row, uniform);
  const Candidates kept = keep(row, options);
  const auto n = static_cast<int64_t>(kept.tokens.size());
  const double target = uniform * kernels::total(kept.weights.data(), n);
  return kept.tokens[static_cast<size_t>(kernels::find_position(kept.weights.data(), n, target).index)];
}

}  // namespace

Sampled sample_token(const float* logits, int64_t vocab, const SamplerOptions& options, double uniform) {
  const Row row(logits, vocab, options);
  if (!row.finite()) return {.finite = false};
  const int64_t token = choose(row, options, uniform);
  return {static_cast<int32_t>(token), kernels::choice_log_prob(options, row[token], row.max, row.sum)};
}

std::vector<int32_t> kept_tokens(const float* logits, int64_t vocab, const SamplerOptions& options) {
  const Row row(logits, vocab, options);
  if (!row.finite()) return {};
  return keep(row, options).tokens;
}

}  // namespace troupe
