// A batch of prompts through a rollout: all samples are submitted at once, and awaited.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "model/decoder.h"
#include "rollout/rollout.h"

namespace troupe::test {

struct SamplingOptions {
  int64_t max_new_tokens = 0;
  double temperature = 1;  // 0 = greedy
  int64_t top_k = 0;       // 0 = off
  double top_p = 1;        // 1 = off
  std::vector<int64_t> stop_token_ids;
};

struct PromptBatch {
  at::Tensor tokens;            // [sum P] int32
  at::Tensor offsets;           // [B+1] int32
  int64_t n = 1;                // samples per prompt
  std::vector<uint64_t> seeds;  // [B*n]

  size_t samples() const { return static_cast<size_t>((offsets.size(0) - 1) * n); }
};

struct GenerateResult {  // B*n samples, grouped by prompt
  at::Tensor tokens;     // [sum R] int32
  at::Tensor offsets;    // [B*n+1] int32
  at::Tensor log_probs;  // [sum R] float32
};

inline std::vector<RolloutRequest> requests_of(const PromptBatch& prompts, const SamplingOptions& options) {
  const int32_t* offsets = prompts.offsets.const_data_ptr<int32_t>();
  const int32_t* tokens = prompts.tokens.const_data_ptr<int32_t>();
  std::vector<RolloutRequest> requests(prompts.samples());
  for (size_t sample = 0; sample < requests.size(); ++sample) {
    const size_t prompt = sample / static_cast<size_t>(prompts.n);
    RolloutRequest& request = requests[sample];
    request.id = sample;
    request.prompt.assign(tokens + offsets[prompt], tokens + offsets[prompt + 1]);
    request.seed = prompts.seeds.at(sample);
    request.sampling.max_new_tokens = options.max_new_tokens;
    request.sampling.temperature = options.temperature;
    request.sampling.top_k = options.top_k;
    request.sampling.top_p = options.top_p;
    request.sampling.stop_token_ids = options.stop_token_ids;
  }
  return requests;
}

// What outputs bring, by sample. Throws what a request has failed with.
class Samples {
 public:
  explicit Samples(size_t count) : tokens_(count), log_probs_(count) {}

  void take(const std::vector<RolloutOutput>& outputs) {
    for (const RolloutOutput& output : outputs) {
      require(output.error.empty(), output.non_finite ? ErrorCode::kNonFinite : ErrorCode::kInternal,
              "sample ", output.id, ": ", output.error);
      auto& tokens = tokens_[output.id];
      auto& log_probs = log_probs_[output.id];
      tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
      log_probs.insert(log_probs.end(), output.log_probs.begin(), output.log_probs.end());
    }
  }

  GenerateResult joined() const {
    std::vector<int32_t> tokens, offsets{0};
    std::vector<float> log_probs;
    for (size_t sample = 0; sample < tokens_.size(); ++sample) {
      tokens.insert(tokens.end(), tokens_[sample].begin(), tokens_[sample].end());
      log_probs.insert(log_probs.end(), log_probs_[sample].begin(), log_probs_[sample].end());
      offsets.push_back(static_cast<int32_t>(tokens.size()));
    }
    return {at::tensor(tokens, at::kInt), at::tensor(offsets, at::kInt), at::tensor(log_probs, at::kFloat)};
  }

 private:
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<float>> log_probs_;
};

// By a rollout of its own, without an engine.
inline GenerateResult generate(Decoder& decoder, const PromptBatch& prompts, const SamplingOptions& options,
                               const RolloutOptions& limits = {}) {
  Samples samples(prompts.samples());
  decoder.begin_decoding(limits.form());
  Rollout rollout(decoder, limits);
  for (RolloutRequest& request : requests_of(prompts, options)) rollout.submit(std::move(request));
  while (rollout.step()) samples.take(rollout.take_outputs());
  samples.take(rollout.take_outputs());
  decoder.end_decoding();
  return samples.joined();
}

// By the rollout of an engine, as training generates. Every rank at the same time.
inline GenerateResult generate(Engine& engine, const PromptBatch& prompts, const SamplingOptions& options,
                               const RolloutOptions& limits = {}) {
  Samples samples(prompts.samples());
  engine.open_rollout(limits);
  engine.begin_rollout(0);
  RolloutCommands commands;
  commands.milliseconds = std::numeric_limits<double>::infinity();
  commands.submit = requests_of(prompts, options);
  const RolloutTurn turn = engine.rollout_turn(std::move(commands));
  engine.park_rollout(/*preempt=*/false);
  require(turn.idle, ErrorCode::kInternal, "a turn without an end has left work behind");
  samples.take(turn.outputs);
  return samples.joined();
}

}  // namespace troupe::test
