// One token from one row of logits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe {

struct SamplerOptions {
  double temperature = 1;  // 0 = greedy: top_k and top_p then change nothing
  int64_t top_k = 0;       // 0 = off
  double top_p = 1;        // 1 = off
  double min_p = 0;        // 0 = off
};

struct Sampled {
  int32_t token = -1;
  float log_prob =
      0;  // log softmax(logits / temperature)[token] over the whole vocabulary (greedy: temperature 1)
  bool finite =
      true;  // false: the logits held NaN or +infinity (or nothing else than -infinity); nothing was sampled
};

// Draws one token from logits [vocab], with `uniform` in [0, 1).
//
// The kept set: the top_k most probable tokens; of these, renormalised, the shortest prefix whose
// probability reaches top_p, at least one token (Holtzman et al., "The Curious Case of Neural Text
// Degeneration", 2019); of these, those at least min_p times as probable as the most probable one (Nguyen et
// al., "Turning Up the Heat: Min-p Sampling", 2024). "Most probable" is by logit descending, then by id
// ascending, so that ties have one outcome. The token is the inverse of the cumulative distribution at
// `uniform`, in that order (in id order when nothing is filtered). Greedy takes the lowest id among the
// largest logits.
//
// exp is float32, every sum float64 in one fixed order: equal inputs give equal results.
Sampled sample_token(const float* logits, int64_t vocab, const SamplerOptions& options, double uniform);

// Row of logits [vocab] as passes over all of it left it, in blocks of kernels::kLogitBlock entries.
struct LogitRow {
  int64_t vocab = 0;
  const float* maxima = nullptr;     // [blocks] the largest entry, NaN where a block holds NaN or +infinity
  const double* sums = nullptr;      // [blocks] of exp((logit - the row's maximum) * inverse_temperature)
  std::vector<const float*> blocks;  // [blocks] its entries, null where they are not at hand
};
float inverse_temperature(const SamplerOptions& options);

// The blocks that sample_row reads, but for a rare wide top_p: it then finds one missing.
std::vector<int64_t> blocks_to_read(const LogitRow& row, const SamplerOptions& options, double uniform);
// As sample_token; nothing when a block that it needs is not at hand.
std::optional<Sampled> sample_row(const LogitRow& row, const SamplerOptions& options, double uniform);

// The kept set in its order, for tests and study; temperature > 0.
std::vector<int32_t> kept_tokens(const float* logits, int64_t vocab, const SamplerOptions& options);

}  // namespace troupe
