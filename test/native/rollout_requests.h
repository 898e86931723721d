// Requests of every kind to a rollout, and all that comes of them.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "rollout/rollout.h"
#include "small_decoder.h"

namespace troupe::test {

using Tokens = std::vector<int32_t>;

struct Answer {
  Tokens tokens;
  std::vector<float> log_probs, prompt_log_probs;
  std::vector<std::vector<TokenLogProb>> top;
  std::vector<int64_t> versions;  // of each token
  int64_t cached = 0;
  Finish finish = Finish::kNone;
  std::string error;
};

inline constexpr int64_t kPositions = 200;

// Longer than a page, with windows that begin inside of one.
inline ModelConfig long_model(const std::string& variant) {
  ModelConfig config = small(variant);
  config.max_positions = kPositions;
  if (variant == "gemma2" || variant == "gemma3" || variant == "olmo3" || config.second_heads)
    for (int64_t& window : config.sliding_windows) window = window > 0 ? 40 : 0;
  return config;
}

inline RolloutRequest request(uint64_t id, Tokens prompt, int64_t new_tokens, double temperature = 1) {
  RolloutRequest r;
  r.id = id;
  r.prompt = std::move(prompt);
  r.seed = 1000 + id;
  r.sampling.max_new_tokens = new_tokens;
  r.sampling.temperature = temperature;
  return r;
}

inline Tokens prompt(int64_t length, int64_t salt = 0) {
  Tokens tokens(static_cast<size_t>(length));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>((i * 7 + i * i * 3 + static_cast<size_t>(salt) * 11) % 50);
  return tokens;
}

inline void take(Rollout& rollout, std::map<uint64_t, Answer>& answers) {
  for (RolloutOutput& output : rollout.take_outputs()) {
    Answer& a = answers[output.id];
    a.tokens.insert(a.tokens.end(), output.tokens.begin(), output.tokens.end());
    a.log_probs.insert(a.log_probs.end(), output.log_probs.begin(), output.log_probs.end());
    a.top.insert(a.top.end(), output.top.begin(), output.top.end());
    a.versions.insert(a.versions.end(), output.tokens.size(), output.version);
    if (!output.prompt_log_probs.empty()) a.prompt_log_probs = output.prompt_log_probs;
    a.cached = output.cached_tokens;
    a.finish = output.finish;
    a.error = output.error;
  }
}

inline std::map<uint64_t, Answer> run(Rollout& rollout, const std::vector<RolloutRequest>& requests) {
  for (const RolloutRequest& r : requests) rollout.submit(r);
  std::map<uint64_t, Answer> answers;
  while (rollout.step()) take(rollout, answers);
  take(rollout, answers);
  return answers;
}

inline std::map<uint64_t, Answer> run(SmallModel& model, const std::vector<RolloutRequest>& requests,
                                      const RolloutOptions& options = {}) {
  model.transformer.begin_decoding(options.form());
  Rollout rollout(model.transformer, options);
  auto answers = run(rollout, requests);
  model.transformer.end_decoding();
  CHECK(rollout.stats().pages_held == 0);
  return answers;
}

inline bool same(const Answer& a, const Answer& b) {
  return a.tokens == b.tokens && a.log_probs == b.log_probs;
}

inline bool all_same(const std::map<uint64_t, Answer>& a, const std::map<uint64_t, Answer>& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& item) {
           return same(item.second, b.at(item.first));
         });
}

inline std::vector<RolloutRequest> mixed(int64_t count) {
  std::vector<RolloutRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    RolloutRequest r = request(static_cast<uint64_t>(i), prompt(1 + i * 37 % 120, i % 5), 10 + i % 40,
                               i % 4 == 0 ? 0 : 0.7 + 0.1 * static_cast<double>(i % 5));
    if (i % 3 == 1) r.sampling.top_k = 10;
    if (i % 3 == 2) r.sampling.top_p = 0.9;
    if (i % 5 == 3) r.sampling.min_p = 0.05;
    if (i % 7 == 3) r.sampling.repetition_penalty = 1.3;
    if (i % 7 == 4) r.sampling.frequency_penalty = 0.4;
    requests.push_back(std::move(r));
  }
  return requests;
}

inline int64_t page_bytes(const SmallModel& model) {
  return KvCache::page_bytes(model.config, at::kFloat);
}

}  // namespace troupe::test
