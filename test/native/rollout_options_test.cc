// What single requests ask for: log-probs of prompts and of likely tokens, and options that change logits.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "check.h"
#include "rollout_requests.h"
#include "toy_decoder.h"

using namespace troupe;
using namespace troupe::test;

TEST(top_and_prompt_log_probs) {
  SmallModel model(long_model("gemma2"));
  RolloutRequest r = request(0, prompt(50), 5, 0);
  r.sampling.top_log_probs = 3;
  r.sampling.prompt_log_probs = true;
  const Answer answer = run(model, {r}, {.max_step_tokens = 16}).at(0);
  CHECK(answer.prompt_log_probs.size() == 50 && std::isnan(answer.prompt_log_probs[0]));
  const TokenBatch batch{at::tensor(r.prompt, at::kInt), at::tensor(Tokens{0, 50}, at::kInt),
                         at::tensor(Tokens{1}, at::kInt)};
  const at::Tensor expected = model.log_probs(batch);
  for (int64_t i = 0; i < 49; ++i)
    CHECK_CLOSE(answer.prompt_log_probs[static_cast<size_t>(i + 1)], expected[i].item<float>(), 1e-5);
  for (size_t t = 0; t < 5; ++t) {
    CHECK(answer.top[t].size() == 3);
    CHECK(answer.top[t][0].token == answer.tokens[t] && answer.top[t][0].log_prob == answer.log_probs[t]);
    CHECK(answer.top[t][0].log_prob >= answer.top[t][1].log_prob &&
          answer.top[t][1].log_prob >= answer.top[t][2].log_prob);
  }
}

// Tokens are drawn from the logits as the model divides them, at whatever temperature.
TEST(a_division_of_logits_is_a_temperature_beside_that_of_the_request) {
  ModelConfig config = long_model("qwen2");
  std::vector<RolloutRequest> requests;
  for (uint64_t i = 0; i < 8; ++i) requests.push_back(request(i, prompt(9, static_cast<int64_t>(i)), 20, 3));
  SmallModel whole(config);
  const auto expected = run(whole, requests);
  config.logits_scaling = 1.5;
  SmallModel divided(config);
  for (RolloutRequest& r : requests) r.sampling.temperature = 2;
  const auto answers = run(divided, requests);
  for (const RolloutRequest& r : requests) CHECK(answers.at(r.id).tokens == expected.at(r.id).tokens);
}

TEST(more_likely_tokens_than_there_are_is_all_of_them) {
  SmallModel model(long_model("qwen2"));
  RolloutRequest r = request(0, prompt(9), 2);
  r.sampling.top_log_probs = kVocabulary + 3;
  const Answer answer = run(model, {r}).at(0);
  CHECK(answer.top.size() == 2);
  for (const std::vector<TokenLogProb>& top : answer.top) {
    double all = 0;
    std::set<int32_t> tokens;
    for (const TokenLogProb& one : top) {
      all += std::exp(one.log_prob);
      tokens.insert(one.token);
    }
    CHECK(static_cast<int64_t>(tokens.size()) == kVocabulary && top.size() == tokens.size());
    CHECK_CLOSE(all, 1, 1e-5);
  }
}

TEST(prompt_log_probs_are_computed_once) {
  SmallModel model(long_model("qwen2"));
  RolloutRequest r = request(0, prompt(50), 20, 0);
  r.sampling.prompt_log_probs = true;
  const Answer whole = run(model, {r}).at(0);
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, {.max_step_tokens = 16});
  rollout.submit(r);
  std::vector<std::vector<float>> sent;
  Tokens tokens;
  const auto take_some = [&] {
    for (const RolloutOutput& output : rollout.take_outputs()) {
      if (!output.prompt_log_probs.empty()) sent.push_back(output.prompt_log_probs);
      tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
    }
  };
  while (tokens.size() < 5) {
    CHECK(rollout.step());
    take_some();
  }
  CHECK(rollout.park(/*preempt=*/true));
  while (rollout.step()) take_some();
  take_some();
  CHECK(tokens == whole.tokens);
  CHECK(sent.size() == 1);
  for (size_t i = 1; i < 50; ++i) CHECK_CLOSE(sent[0][i], whole.prompt_log_probs[i], 1e-5);
}

// One row of the first prompt has logits that are no numbers.
class BadRowDecoder : public ToyDecoder {
 public:
  void logits(const at::Tensor& x, const at::Tensor& logits) override {
    ToyDecoder::logits(x, logits);
    if (calls_++ == 0) logits[2].fill_(std::nan(""));
  }

 private:
  int calls_ = 0;
};

// A sample of a prompt that wants them computes it itself, whoever runs beside it.
TEST(prompt_log_probs_of_one_sample_beside_one_without) {
  SmallModel model(long_model("qwen3"));
  for (const bool first_wants : {false, true}) {
    std::vector<RolloutRequest> both{request(0, prompt(40), 3), request(1, prompt(40), 3)};
    both[first_wants ? 0 : 1].sampling.prompt_log_probs = true;
    const auto answers = run(model, both);
    CHECK(answers.at(first_wants ? 0 : 1).prompt_log_probs.size() == 40);
    CHECK(answers.at(first_wants ? 1 : 0).prompt_log_probs.empty());
  }
}

TEST(prompt_log_probs_that_are_no_numbers_fail_their_request) {
  BadRowDecoder decoder;
  decoder.begin_decoding();
  Rollout rollout(decoder, {});
  RolloutRequest bad = request(0, prompt(9), 4), good = request(1, prompt(6, 1), 4);
  bad.sampling.prompt_log_probs = good.sampling.prompt_log_probs = true;
  const auto answers = run(rollout, {bad, good});
  CHECK(answers.at(0).error.find("the log-prob of prompt token 3 has NaN or infinity") != std::string::npos);
  CHECK(answers.at(0).finish == Finish::kAbort && answers.at(0).tokens.empty());
  CHECK(answers.at(1).error.empty() && answers.at(1).tokens.size() == 4);
  CHECK(rollout.stats().pages_held == 0);
}

// A constrained request is reported when it is submitted, before its prompt is through.
TEST(prompt_log_probs_of_a_constrained_request_go_out_whole) {
  SmallModel model(long_model("qwen2"));
  RolloutRequest r = request(0, prompt(50), 1, 0);
  r.sampling.prompt_log_probs = true;
  const Answer free = run(model, {r}, {.max_step_tokens = 16}).at(0);
  r.sampling.constrained = true;
  // Steps before its first output is taken: the prompt has four.
  for (int64_t before = 0; before <= 4; ++before) {
    model.transformer.begin_decoding();
    Rollout rollout(model.transformer, {.max_step_tokens = 16});
    rollout.submit(r);
    std::vector<std::vector<float>> sent;
    const auto take_some = [&] {
      for (const RolloutOutput& output : rollout.take_outputs())
        if (!output.prompt_log_probs.empty()) sent.push_back(output.prompt_log_probs);
    };
    for (int64_t step = 0; step < before; ++step) CHECK(rollout.step());
    take_some();
    while (rollout.step()) take_some();
    rollout.set_mask(0, {~0u, ~0u});
    while (rollout.step()) take_some();
    take_some();
    CHECK(sent.size() == 1 && sent[0].size() == 50);
    for (size_t i = 1; i < 50; ++i) CHECK(sent[0][i] == free.prompt_log_probs[i]);
  }
}

// However many steps have been made since outputs were last taken.
TEST(each_request_has_one_output_with_all_of_its_tokens) {
  SmallModel model(long_model("qwen2"));
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, {});
  for (const uint64_t id : {3, 1, 2}) rollout.submit(request(id, prompt(9, static_cast<int64_t>(id)), 9));
  for (int64_t step = 0; step < 4; ++step) CHECK(rollout.step());
  const std::vector<RolloutOutput> outputs = rollout.take_outputs();
  CHECK(outputs.size() == 3);
  for (const RolloutOutput& output : outputs)
    CHECK(output.tokens.size() == 4 && output.log_probs.size() == 4 && output.finish == Finish::kNone);
  CHECK(rollout.take_outputs().empty());
}

TEST(options_that_leave_no_token_are_those_of_the_request) {
  SmallModel model(long_model("qwen2"));
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, {});
  RolloutRequest r = request(5, prompt(9), 4, 1);
  r.sampling.constrained = true;
  r.sampling.bad_words = {{3}};
  rollout.submit(r);
  rollout.set_mask(5, {1u << 3, 0});
  while (rollout.step()) {
  }
  const std::vector<RolloutOutput> outputs = rollout.take_outputs();
  CHECK(outputs.size() == 1 && !outputs[0].non_finite);
  CHECK(outputs[0].error.find("leave no token of finite logits for response token 0") != std::string::npos);
  r.sampling.logit_bias = {{17, std::numeric_limits<float>::infinity()}};
  CHECK_THROWS(rollout.submit(r), "logit bias inf of token id 17: expected a float32");
}

TEST(penalties_bias_bad_words_and_masks) {
  SmallModel model(long_model("qwen2"));
  const Answer free = run(model, {request(0, prompt(9), 30, 0)}).at(0);
  RolloutRequest biased = request(0, prompt(9), 3, 0);
  biased.sampling.logit_bias = {{17, 1000.0f}};
  CHECK(run(model, {biased}).at(0).tokens == Tokens({17, 17, 17}));
  // The log-probability stays the model's own.
  CHECK(run(model, {biased}).at(0).log_probs[0] < -0.1f);
  RolloutRequest once = biased;
  once.sampling.frequency_penalty = 2000;
  const Tokens tokens = run(model, {once}).at(0).tokens;
  CHECK(tokens[0] == 17 && tokens[1] != 17 && tokens[2] != 17);
  RolloutRequest repeated = request(0, prompt(9), 30, 0);
  repeated.sampling.repetition_penalty = 100;
  const Tokens fresh = run(model, {repeated}).at(0).tokens;
  CHECK(std::find(fresh.begin(), fresh.begin() + 5, prompt(9)[3]) == fresh.begin() + 5);
  RolloutRequest worded = request(0, prompt(9), 30, 0);
  worded.sampling.bad_words = {{free.tokens[0], free.tokens[1]}};
  const Tokens without = run(model, {worded}).at(0).tokens;
  CHECK(without[0] == free.tokens[0] && without[1] != free.tokens[1]);
  // The first token of all that comes behind a prompt of all but the last of a word.
  RolloutRequest first = request(0, prompt(1), 1, 0);
  first.sampling.bad_words = {{first.prompt[0], run(model, {first}).at(0).tokens[0]}};
  CHECK(run(model, {first}).at(0).tokens[0] != first.sampling.bad_words[0][1]);

  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, {});
  RolloutRequest masked = request(5, prompt(40), 4, 1);
  masked.sampling.constrained = true;
  rollout.submit(masked);
  std::map<uint64_t, Answer> answers;
  for (const int32_t token : {3, 33, 49, 0}) {
    while (rollout.step()) {
    }
    bool asked = false;
    for (const RolloutOutput& output : rollout.take_outputs()) asked = asked || output.needs_mask;
    CHECK(asked);
    std::vector<uint32_t> mask(2);
    mask[static_cast<size_t>(token / 32)] = 1u << (token % 32);
    rollout.set_mask(5, mask);
    while (rollout.step()) {
    }
    if (token != 0) continue;
    take(rollout, answers);
  }
  CHECK(answers.at(5).finish == Finish::kLength && answers.at(5).tokens == Tokens{0});
  rollout.submit(masked);
  rollout.set_mask(5, {0, 0});
  take(rollout, answers);
  CHECK(answers.at(5).error.find("allows none") != std::string::npos);
  CHECK(rollout.stats().pages_held == 0);
}

TEST_MAIN()
