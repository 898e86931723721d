// Requests to a Rollout, and what comes of them.
#pragma once

#include <map>
#include <utility>

#include "rollout/rollout.h"
#include "small_decoder.h"

namespace troupe::test {

using Tokens = std::vector<int32_t>;

inline ModelConfig long_model(const std::string& variant) {
  ModelConfig config = small(variant);
  config.max_positions = 200;
  return config;
}

inline Tokens prompt(int64_t length, int64_t salt = 0) {
  Tokens tokens;
  for (int64_t i = 0; i < length; ++i)
    tokens.push_back(static_cast<int32_t>((i * 7 + i * i * 3 + salt * 11) % kVocabulary));
  return tokens;
}

inline RolloutRequest request(uint64_t id, Tokens prompt, int64_t new_tokens) {
  RolloutRequest r;
  r.id = id;
  r.prompt = std::move(prompt);
  r.seed = 1000 + id;
  r.sampling.max_new_tokens = new_tokens;
  r.sampling.temperature = 1;
  return r;
}

inline std::vector<RolloutRequest> some(int64_t count) {
  std::vector<RolloutRequest> requests;
  for (int64_t i = 0; i < count; ++i)
    requests.push_back(request(static_cast<uint64_t>(i), prompt(1 + i * 37 % 90, i % 5), 10 + i % 30));
  return requests;
}

struct Answer {
  Tokens tokens;
  std::vector<float> log_probs;
  int64_t cached = 0;
  // Whatever was found in the cache.
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && log_probs == other.log_probs;
  }
};
using Answers = std::map<uint64_t, Answer>;

inline void take(Rollout& rollout, Answers& answers) {
  for (RolloutOutput& output : rollout.take_outputs()) {
    Answer& answer = answers[output.id];
    answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
    answer.log_probs.insert(answer.log_probs.end(), output.log_probs.begin(), output.log_probs.end());
    answer.cached = output.cached_tokens;
  }
}

inline Answers finish(Rollout& rollout, Answers answers = {}) {
  while (rollout.step()) take(rollout, answers);
  take(rollout, answers);
  return answers;
}

inline Answers run(Rollout& rollout, const std::vector<RolloutRequest>& requests) {
  for (const RolloutRequest& r : requests) rollout.submit(r);
  return finish(rollout);
}

// Everything at once, with room for all.
inline Answers run(Decoder& decoder, const std::vector<RolloutRequest>& requests) {
  Rollout rollout(decoder, {});
  return run(rollout, requests);
}

}  // namespace troupe::test
