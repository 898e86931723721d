// Guesses of a response's next tokens, for speculative decoding, and what they are worth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <unordered_map>
#include <vector>

#include "rollout/request.h"
#include "rollout/sequence.h"
#include "rollout/step_plan.h"

namespace troupe {

// Drafts by the model's own layer for further tokens (rollout/token_predictor.h), which leaves its guesses
// with the sequence; or by looking up: where the last tokens of a sequence stand once more, in its own prompt
// and response or in other responses to its prompt, what follows there is the guess (prompt lookup decoding,
// Saxena 2023; over other responses as in suffix decoding, arXiv:2411.04975). The longest match counts; of
// equal ones that with most behind it, then the sequence's own, then the newest. Responses that have ended
// are remembered, up to a number of tokens in all: where a group samples one prompt the last to end profit
// most.
//
// A guess is drafted as far as that pays. How often the token behind a match of each length was right, of the
// model's own guesses each of their tokens, is counted for all guesses, drafted or not; a row costs about as
// much of a step as there are sequences, so that a token is worth one where its probability is no less than
// the share that these are of max_sequences.
class Drafter {
 public:
  // kInvalidArgument for options that make no sense.
  explicit Drafter(const DraftOptions& options);

  // Between these two calls its tokens serve others of its prompt; after the second a copy of them. Nothing
  // of it where nothing is looked up. Where memory runs out the first (std::bad_alloc) has changed nothing,
  // and the second leaves no copy.
  void begin(Sequence& sequence);
  void end(const Sequence& sequence);

  // Whether drafts pay where so many sequences decode at the same time.
  bool drafts(int64_t sequences) const {
    return options_.num_tokens > 0 && sequences <= options_.max_sequences;
  }
  // At most `count` tokens, perhaps none.
  Guess guess(const Sequence& sequence, int64_t count) const;
  // How many of its tokens are worth a row where so many sequences decode.
  int64_t worth(const Guess& guess, int64_t sequences) const;
  // Of the tokens of a guess, those that are worth being made: by the model's own layer those that may be
  // worth a row, and one more, so that it is known when that one is.
  int64_t depth(int64_t sequences) const;
  // Its tokens before this one were right.
  void guessed(const Guess& guess, int64_t at, bool right);

  // Tokens of responses that have ended.
  int64_t remembered() const { return remembered_; }

 private:
  // What has been said to one prompt (of one salt). Two prompts of the same hash draft for each other, in
  // vain.
  struct Family {
    std::vector<const Sequence*> running;
    std::list<std::vector<int32_t>> ended;  // the prompt's last tokens and the response, oldest first
  };
  void forget_oldest();
  bool looks_up() const { return options_.num_tokens > 0 && !options_.predicts; }
  // How often a token of a guess was right, of those behind a match of one length, or at one place.
  struct Rate {
    double right = 0, all = 0;
    // The rule of succession: one half where nothing is known.
    double probability() const { return (right + 1) / (all + 2); }
  };
  size_t rate_of(const Guess& guess, int64_t at) const;

  DraftOptions options_;
  std::unordered_map<uint64_t, Family> families_;
  std::deque<uint64_t> order_;  // families of those that have ended, the oldest first
  int64_t remembered_ = 0;
  std::vector<Rate> rates_;  // by the length of the match, from 1; of the model's guesses by their tokens
};

}  // namespace troupe
