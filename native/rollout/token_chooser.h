// From rows of logits to tokens and log-probabilities, each row by the options of its request.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "rollout/sampler.h"
#include "rollout/sequence.h"

namespace troupe {

// One row of logits and what is wanted of it: the next token of `sequence`, or, with a target, its
// log-probability.
struct LogitsUse {
  Sequence* sequence = nullptr;
  int32_t target = -1;  // of a prompt; -1: a token is to be sampled
};

struct Chosen {
  Sampled sampled;  // for a target: token is the target
  std::vector<TokenLogProb> top;
};

// logits [n, V] float32, before the final soft cap; uses[i] of row i. Overwrites the logits. `softcap`: of
// the model, 0 = off. Log-probs have the bits of ops::linear_log_prob_forward where the logits have.
std::vector<Chosen> choose_tokens(const at::Tensor& logits, double softcap,
                                  const std::vector<LogitsUse>& uses);

}  // namespace troupe
