// What one request asks of a rollout, and what comes out of a step for it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "batch/images.h"
#include "model/decoding_form.h"

namespace troupe {

// How the tokens of a request are chosen. In this order, each on what the one before has left: penalties,
// bias, bad words, the mask of allowed tokens; temperature; top-k; top-p; min-p.
struct RequestSampling {
  int64_t max_new_tokens = 0;
  double temperature = 1;         // 0 = greedy
  int64_t top_k = 0;              // 0 = off
  double top_p = 1;               // 1 = off
  double min_p = 0;               // 0 = off
  double repetition_penalty = 1;  // divides positive logits of tokens seen so far, multiplies negative ones
  double presence_penalty = 0;    // subtracted once from logits of tokens of the response
  double frequency_penalty = 0;   // subtracted for every time that a token is in the response
  std::vector<int64_t> stop_token_ids;
  std::vector<std::vector<int32_t>> bad_words;  // sequences that are never completed
  std::vector<std::pair<int32_t, float>> logit_bias;
  int64_t top_log_probs = 0;  // also the most likely tokens of each position
  bool prompt_log_probs = false;
  bool constrained = false;  // every token waits for a mask

  bool changes_logits() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0 || !bad_words.empty() ||
           !logit_bias.empty() || constrained;
  }
  bool penalises() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};

struct RolloutRequest {
  uint64_t id = 0;  // of the caller; not in use
  std::vector<int32_t> prompt;
  RequestSampling sampling;
  uint64_t seed = 0;          // the t-th token follows from (seed, t) and the distribution
  double priority = 0;        // higher ones are admitted first and preempted last
  uint64_t salt = 0;          // requests share pages with those of the same salt and the same images
  std::vector<Image> images;  // of the prompt, in order
};

enum class Finish { kNone, kStop, kLength, kAbort };

struct TokenLogProb {
  int32_t token;
  float log_prob;
};

// What steps have made for one request since outputs were last taken.
struct RolloutOutput {
  uint64_t id = 0;
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;                // under the model at the temperature (greedy: 1), as
                                               // compute_log_prob gives them
  std::vector<std::vector<TokenLogProb>> top;  // per token, where asked for
  std::vector<float> prompt_log_probs;         // [P], the first NaN; with the first token, where asked for
  // Of every position but the last (batch/routed_experts.h: [count * row_bytes]); with the last token, or the
  // abort (Rollout::abort), where RolloutOptions say so.
  std::vector<uint8_t> routed_experts;
  int64_t version = 0;        // of the weights that made these tokens
  int64_t cached_tokens = 0;  // of the prompt, found in the cache at admission
  Finish finish = Finish::kNone;
  std::string error;        // the request has failed
  bool non_finite = false;  // because the model's logits are no numbers
  bool needs_mask = false;  // it waits for the mask of its next token
};

// Speculative decoding (rollout/drafter.h). It changes no token.
struct DraftOptions {
  int64_t num_tokens = 0;                        // guessed per sequence and step at most; 0: none
  bool predicts = false;                         // by the model's own layer; otherwise by looking up
  int64_t min_match = 2, max_match = 8;          // of a sequence's last tokens, those that are looked up
  int64_t max_sequences = 16;                    // where more decode at the same time nothing is guessed
  int64_t remembered_tokens = int64_t{1} << 22;  // of responses that have ended
};

// How much of the machine a rollout may take. Of all this quantization, tensor_parallel and latent_cache
// alone change tokens.
struct RolloutOptions {
  int64_t max_sequences = 256;                // that run at the same time
  int64_t max_step_tokens = 8192;             // positions of a step, prompts and decodes together
  int64_t max_positions = 0;                  // of a sequence; 0: the model's
  int64_t kv_cache_bytes = int64_t{4} << 30;  // 0: memory_share of what the machine has
  // Of states, of sequences and snapshots; 0: as many as cache_sizes() says (rollout/cache_sizes.h).
  int64_t state_slots = 0;
  double memory_share = 0;
  bool chunked_prefill = true;
  bool prefix_caching = true;
  int64_t logits_bytes = int64_t{64} << 20;  // of the logits that exist at once
  // Of a mixture of experts: also say which ones the tokens went to.
  bool routed_experts = false;
  DraftOptions drafts;
  // Neighbouring ranks that decode together where each trains with whole matrices: each has a part of every
  // matrix and of the cache. It changes the rounding of log-probs, and a token where that decides.
  int64_t tensor_parallel = 1;
  // Of the layers' weights. It does change tokens.
  ops::Quantization quantization = ops::Quantization::kNone;
  // Of a model with latent attention: what is kept of a position are its latents, in the place of the keys
  // and values of all heads, and attention is over them. It changes the rounding of log-probs, and a token
  // where that decides.
  bool latent_cache = false;

  // Whether the model's layer for further tokens takes part.
  bool predicts() const { return drafts.num_tokens > 0 && drafts.predicts; }
  DecodingForm form() const { return {quantization, predicts(), latent_cache}; }
};

struct RolloutStats {
  int64_t running = 0, waiting = 0;
  int64_t pages = 0, pages_held = 0, pages_indexed = 0;
  int64_t slots_held = 0, snapshots = 0;  // of states (rollout/state_slots.h)
  int64_t cache_bytes = 0;
  int64_t prompt_tokens = 0, cached_prompt_tokens = 0, generated_tokens = 0;  // since it was made
  int64_t computed_tokens = 0;                                                // rows of all steps
  // Runs with a draft, their tokens, and those of them that were sampled and went on, each a token more of
  // the run, which generated_tokens counts, too.
  int64_t drafts = 0, drafted_tokens = 0, accepted_tokens = 0;
  int64_t host_choices = 0;  // tokens whose logits came from a device to the host (rollout/token_chooser.h)
  int64_t steps = 0, preemptions = 0, version = 0;
};

// What a caller has to say between steps.
struct RolloutCommands {
  std::vector<RolloutRequest> submit;
  std::vector<uint64_t> abort;
  std::vector<std::pair<uint64_t, std::vector<uint32_t>>> masks;
  double milliseconds = 0;  // steps begin within this time
};

struct RolloutTurn {
  std::vector<RolloutOutput> outputs;
  RolloutStats stats;
  bool ready = true;  // false: no step was made, the weights are not at hand: begin_rollout
  bool idle = false;  // the last step found nothing to do
};

}  // namespace troupe
