// From rows of logits to tokens and log-probabilities, each row by the options of its request.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "rollout/sampler.h"
#include "rollout/sequence.h"

namespace troupe {

// One row of logits and what is wanted of it: the next token of `sequence`, or, with a target, its
// log-probability.
struct LogitsUse {
  Sequence* sequence = nullptr;
  int32_t target = -1;  // of a prompt; -1: a token is to be sampled
  int64_t ahead = 0;    // tokens of a draft between those of the sequence and the one to be sampled
};

struct Chosen {
  Sampled sampled;         // for a target: token is the target
  bool none_left = false;  // of finite logits, by the options of the request: nothing was sampled
  std::vector<TokenLogProb> top;
};

SamplerOptions sampler_options(const Sequence& sequence);
// The number that the token is drawn with.
double uniform_of(const LogitsUse& use);

// The logits of uses [>= as many, V] float32, in their order, before the final soft cap and the scaling;
// the chooser may overwrite them, and has done with them when it asks again.
using LogitsOf = std::function<at::Tensor(const std::vector<int64_t>& uses)>;

struct Choices {
  std::vector<Chosen> chosen;
  int64_t on_host = 0;  // rows of a device that came to the host, because too many tokens may be sampled
};

// What logits are of.
struct LogitsKind {
  std::vector<int64_t> parts;  // Decoder::vocabulary_parts
  double softcap;              // of the model, 0 = off
  double scaling;              // of the model: divides them, behind the soft cap
};

// Takes the logits of at most `most_rows` uses at a time. On a device all of it is launched before the host
// waits, once, for the result. On a CPU log-probs have the bits of ops::linear_log_prob_forward, over the
// parts of the vocabulary that ranks have, where the logits have.
Choices choose_tokens(const LogitsOf& logits_of, int64_t most_rows, const LogitsKind& kind,
                      const std::vector<LogitsUse>& uses);

}  // namespace troupe
