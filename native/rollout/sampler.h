// One token from one row of logits.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/token_choice.h"

namespace troupe {

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
// kernels/choose_token.h does the same with many threads, and with the bits of this on a CPU.
Sampled sample_token(const float* logits, int64_t vocab, const SamplerOptions& options, double uniform);

// The kept set in its order, for tests and study; temperature > 0.
std::vector<int32_t> kept_tokens(const float* logits, int64_t vocab, const SamplerOptions& options);

}  // namespace troupe
