// A request while it is served.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "model/vision_tower.h"
#include "rollout/request.h"

namespace troupe {

struct Sequence {
  RolloutRequest request;
  uint64_t arrival = 0;
  std::vector<int32_t> tokens;  // prompt and response
  int64_t computed = 0;         // of these, those whose keys and values are in the pages
  std::vector<int32_t> pages;   // one per kPagePositions positions
  // Full pages in the index, or that could be: the hash of their chain. A sequence whose pages are of several
  // versions of the weights shares no more of them.
  int64_t chained = 0;
  uint64_t chain = 0;
  bool shares = true;
  // Held until the first run: its first page that is not full begins as a copy of this one. -1: of none.
  int32_t tail = -1;
  int64_t slot = -1;      // of states (rollout/state_slots.h), while it is admitted
  int64_t snapshot = -1;  // the slot with the state that it goes on from, until it has its own
  // Behind these positions, full pages, its state is to be kept.
  struct Mark {
    int64_t position;
    uint64_t chain;  // of the pages up to there, once they are in the index
  };
  std::vector<Mark> marks;
  uint64_t family = 0;             // of its prompt, of a rollout that drafts (rollout/drafter.h)
  std::vector<int32_t> predicted;  // the next tokens, as the model's own layer guesses them
  bool looked_up = false;          // the prompt, in the index
  bool running = false;            // admitted
  bool planned = false;            // for the step that is being planned, with rows of its own
  RolloutOutput output;
  std::vector<uint32_t> mask;  // of the next token
  bool has_mask = false;
  std::vector<ImageSpan> images;  // of the prompt
  // Of those that have tokens to compute, from the first step with one of their tokens to the last.
  std::optional<ImageFeatures> features;
  int64_t without_features = 0;               // tokens of the images before these
  std::unordered_map<int32_t, int32_t> seen;  // token -> times in the response; 0: only in the prompt

  int64_t prompt_length() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t response_length() const { return length() - prompt_length(); }
  // Positions to compute before the next token can be sampled.
  int64_t remaining() const { return length() - computed; }
  // They are known, and have been sent, with the first token: whoever is computed anew has no use for them.
  bool wants_prompt_log_probs() const { return request.sampling.prompt_log_probs && response_length() == 0; }
  // Whether the next token may be sampled as soon as they are computed.
  bool may_sample() const { return !request.sampling.constrained || has_mask; }
};

}  // namespace troupe
