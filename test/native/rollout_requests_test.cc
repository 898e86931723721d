#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "base/error.h"
#include "check.h"
#include "kernels/gemm.h"
#include "rollout/rollout.h"
#include "small_decoder.h"
#include "toy_decoder.h"

using namespace troupe;
using test::small;
using test::SmallModel;

namespace {

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

constexpr int64_t kPositions = 200;

// Longer than a page, with windows that begin inside of one.
ModelConfig long_model(const std::string& variant) {
  ModelConfig config = small(variant);
  config.max_positions = kPositions;
  if (variant == "gemma2" || variant == "gemma3" || variant == "olmo3") config.sliding_windows = {40, 0};
  return config;
}

RolloutRequest request(uint64_t id, Tokens prompt, int64_t new_tokens, double temperature = 1) {
  RolloutRequest r;
  r.id = id;
  r.prompt = std::move(prompt);
  r.seed = 1000 + id;
  r.sampling.max_new_tokens = new_tokens;
  r.sampling.temperature = temperature;
  return r;
}

Tokens prompt(int64_t length, int64_t salt = 0) {
  Tokens tokens(static_cast<size_t>(length));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>((i * 7 + i * i * 3 + static_cast<size_t>(salt) * 11) % 50);
  return tokens;
}

void take(Rollout& rollout, std::map<uint64_t, Answer>& answers) {
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

std::map<uint64_t, Answer> run(Rollout& rollout, const std::vector<RolloutRequest>& requests) {
  for (const RolloutRequest& r : requests) rollout.submit(r);
  std::map<uint64_t, Answer> answers;
  while (rollout.step()) take(rollout, answers);
  take(rollout, answers);
  return answers;
}

std::map<uint64_t, Answer> run(SmallModel& model, const std::vector<RolloutRequest>& requests,
                               const RolloutOptions& options = {}) {
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, options);
  auto answers = run(rollout, requests);
  model.transformer.end_decoding();
  CHECK(rollout.stats().pages_held == 0);
  return answers;
}

bool same(const Answer& a, const Answer& b) {
  return a.tokens == b.tokens && a.log_probs == b.log_probs;
}

bool all_same(const std::map<uint64_t, Answer>& a, const std::map<uint64_t, Answer>& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& item) {
           return same(item.second, b.at(item.first));
         });
}

std::vector<RolloutRequest> mixed(int64_t count) {
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

int64_t page_bytes(const SmallModel& model) {
  return KvCache::page_bytes(model.config, at::kFloat);
}

// The next step fails, as one does for want of memory.
class FailingDecoder : public test::ToyDecoder {
 public:
  void embed(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& x) override {
    if (std::exchange(fails, false)) throw Error(ErrorCode::kOutOfMemory, "no memory");
    ToyDecoder::embed(tokens, positions, x);
  }

  bool fails = false;
};

}  // namespace

TEST(the_same_tokens_whatever_else_runs) {
  for (const char* variant :
       {"qwen2", "qwen3", "gpt2", "gemma2", "gemma3", "smollm3", "qwen3_moe", "glm4_moe", "deepseek_v3",
        "gpt_oss", "latent", "qwen3_5", "qwen3_next", "olmo3", "granite", "granitemoe", "glm4"}) {
    SmallModel model(long_model(variant));
    const std::vector<RolloutRequest> requests = mixed(64);
    const auto together = run(model, requests);
    for (const size_t i : {size_t{0}, size_t{3}, size_t{17}, size_t{30}, size_t{63}}) {
      CHECK(same(run(model, {requests[i]}).at(requests[i].id), together.at(requests[i].id)));
    }
    CHECK(all_same(run(model, requests, {.max_step_tokens = 16}), together));
    CHECK(all_same(run(model, requests, {.max_sequences = 3, .prefix_caching = false}), together));
    CHECK(all_same(run(model, requests, {.max_step_tokens = 64, .chunked_prefill = false}), together));
  }
}

TEST(preemption_changes_no_token) {
  SmallModel model(long_model("qwen3"));
  const std::vector<RolloutRequest> requests = mixed(24);
  const auto together = run(model, requests);
  model.transformer.begin_decoding();
  // Room for one of the longest alone: 159 positions are 5 pages.
  for (const int64_t pages : {5, 7, 12}) {
    for (const bool caching : {false, true}) {
      Rollout rollout(model.transformer,
                      {.kv_cache_bytes = pages * page_bytes(model), .prefix_caching = caching});
      CHECK(all_same(run(rollout, requests), together));
      CHECK(rollout.stats().preemptions > 0);
      CHECK(rollout.stats().pages_held == 0);
    }
  }
}

TEST(log_probs_have_the_bits_of_compute_log_prob) {
  if (!ops::packs(at::zeros({1, 1}))) {
    std::printf("  products are not our own on this processor: not compared\n");
    return;
  }
  for (const char* variant :
       {"qwen2", "qwen3", "gpt2", "gemma2", "gemma3", "smollm3", "qwen3_5", "olmo3", "granite", "glm4"}) {
    SmallModel model(long_model(variant));
    std::vector<RolloutRequest> requests;
    for (uint64_t i = 0; i < 12; ++i)
      requests.push_back(request(i, prompt(1 + static_cast<int64_t>(i) * 11, 2), 60));
    const auto answers = run(model, requests, {.max_step_tokens = 50});
    std::vector<at::Tensor> tokens, expected;
    Tokens offsets{0}, prompt_lens;
    for (const RolloutRequest& r : requests) {
      const Answer& answer = answers.at(r.id);
      Tokens all = r.prompt;
      all.insert(all.end(), answer.tokens.begin(), answer.tokens.end());
      tokens.push_back(at::tensor(all, at::kInt));
      offsets.push_back(offsets.back() + static_cast<int32_t>(all.size()));
      prompt_lens.push_back(static_cast<int32_t>(r.prompt.size()));
      expected.push_back(at::tensor(answer.log_probs, at::kFloat));
    }
    const TokenBatch batch{at::cat(tokens), at::tensor(offsets, at::kInt), at::tensor(prompt_lens, at::kInt)};
    CHECK(at::equal(model.log_probs(batch), at::cat(expected)));
  }
}

TEST(a_second_turn_computes_only_what_is_new) {
  SmallModel model(long_model("qwen3"));
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, {});
  const auto first = run(rollout, {request(1, prompt(100), 40)}).at(1);
  Tokens history = prompt(100);
  history.insert(history.end(), first.tokens.begin(), first.tokens.end());
  const Tokens more = prompt(20, 9);
  history.insert(history.end(), more.begin(), more.end());
  const int64_t before = rollout.stats().computed_tokens;
  const auto second = run(rollout, {request(2, history, 10)}).at(2);
  // 139 positions are in the cache: 4 full pages, and 11 of a page that is copied.
  CHECK(second.cached == 139);
  CHECK(rollout.stats().computed_tokens - before == 160 - 139 + 9);
  CHECK(same(run(model, {request(2, history, 10)}).at(2), second));
  // Another turn parts from it within that page. The newest tail is the second turn's, behind 5 full pages.
  history.resize(165, 7);
  history[135] = (history[135] + 1) % 50;
  const auto parted = run(rollout, {request(5, history, 10)}).at(5);
  CHECK(parted.cached == 135);
  CHECK(same(run(model, {request(5, history, 10)}).at(5), parted));
  // Another salt, and other weights, share nothing.
  RolloutRequest salted = request(3, history, 1);
  salted.salt = 7;
  CHECK(run(rollout, {salted}).at(3).cached == 0);
  rollout.weights_changed(false);
  CHECK(run(rollout, {request(4, history, 1)}).at(4).cached == 0);
}

// The turn ends in the page that the one before it has begun: one sample copies its tail, others get a page
// of their own that is written behind the step.
TEST(a_step_that_fails_leaves_no_page_that_was_not_written) {
  FailingDecoder decoder;
  Rollout rollout(decoder, {});
  Tokens history = prompt(40);
  const auto first = run(rollout, {request(1, history, 3)}).at(1);
  history.insert(history.end(), first.tokens.begin(), first.tokens.end());
  history.resize(48, 7);
  decoder.fails = true;
  for (const uint64_t id : {2, 3}) rollout.submit(request(id, history, 10));
  CHECK_THROWS(rollout.step(), "no memory");
  for (const uint64_t id : {2, 3}) rollout.abort(id);
  CHECK(rollout.stats().pages_held == 0);
  // One that goes on to the next page, then one that parts from it in this one.
  run(rollout, {request(4, history, 30)});
  history[45] = 8;
  Rollout other(decoder, {});
  CHECK(same(run(rollout, {request(5, history, 10)}).at(5), run(other, {request(5, history, 10)}).at(5)));
}

// The second sequence counts on pages that the first one was to fill.
TEST(a_step_that_fails_leaves_nobody_with_pages_of_another) {
  FailingDecoder decoder;
  Rollout rollout(decoder, {}), other(decoder, {});
  const RolloutRequest filling = request(1, prompt(70), 10);
  RolloutRequest sharing = request(2, prompt(70), 10);
  sharing.prompt[65] = (sharing.prompt[65] + 1) % 50;
  const Answer alone = run(other, {sharing}).at(2);
  decoder.fails = true;
  rollout.submit(filling);
  rollout.submit(sharing);
  CHECK_THROWS(rollout.step(), "no memory");
  CHECK(rollout.stats().running == 0 && rollout.stats().pages_held == 0);
  rollout.abort(1);
  CHECK(same(run(rollout, {}).at(2), alone));
}

// As many pages as the second turn needs: its tail cannot be held beside them.
TEST(a_second_turn_that_fills_the_cache_is_served) {
  SmallModel model(long_model("qwen3"));
  for (const int64_t spare : {0, 1}) {
    model.transformer.begin_decoding();
    Rollout rollout(model.transformer, {.kv_cache_bytes = (3 + spare) * page_bytes(model)});
    const auto first = run(rollout, {request(1, prompt(40), 10)}).at(1);
    Tokens history = prompt(40);
    history.insert(history.end(), first.tokens.begin(), first.tokens.end());
    history.resize(80, 3);
    const auto second = run(rollout, {request(2, history, 10)}).at(2);
    CHECK(second.cached == (spare > 0 ? 49 : 32));
    CHECK(rollout.stats().pages_held == 0);
    CHECK(same(run(model, {request(2, history, 10)}).at(2), second));
  }
}

TEST(samples_of_a_prompt_compute_it_once) {
  SmallModel model(long_model("qwen2"));
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, {});
  std::vector<RolloutRequest> requests;
  for (uint64_t i = 0; i < 16; ++i) requests.push_back(request(i, prompt(75), 4));
  const auto answers = run(rollout, requests);
  CHECK(rollout.stats().computed_tokens == 75 + 16 * 3);
  for (const uint64_t i : {0, 5, 15}) CHECK(same(run(model, {requests[i]}).at(i), answers.at(i)));
  CHECK(answers.at(0).tokens != answers.at(1).tokens);
}

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
class BadRowDecoder : public test::ToyDecoder {
 public:
  void logits(const at::Tensor& x, const at::Tensor& logits) override {
    ToyDecoder::logits(x, logits);
    if (calls_++ == 0) logits[2].fill_(std::nan(""));
  }

 private:
  int calls_ = 0;
};

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
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, {.max_step_tokens = 16});
  r.sampling.constrained = true;
  rollout.submit(r);
  std::vector<std::vector<float>> sent;
  const auto take_some = [&] {
    for (const RolloutOutput& output : rollout.take_outputs())
      if (!output.prompt_log_probs.empty()) sent.push_back(output.prompt_log_probs);
  };
  CHECK(rollout.step());
  take_some();
  while (rollout.step()) take_some();
  rollout.set_mask(0, {~0u, ~0u});
  while (rollout.step()) take_some();
  take_some();
  CHECK(sent.size() == 1 && sent[0].size() == 50);
  for (size_t i = 1; i < 50; ++i) CHECK(sent[0][i] == free.prompt_log_probs[i]);
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

TEST(versions_go_with_tokens) {
  SmallModel model(long_model("qwen3"));
  model.transformer.begin_decoding();
  for (const bool restart : {false, true}) {
    Rollout rollout(model.transformer, {});
    std::map<uint64_t, Answer> answers;
    for (uint64_t i = 0; i < 6; ++i) rollout.submit(request(i, prompt(40, static_cast<int64_t>(i)), 30));
    for (int64_t version = 1; version <= 100; ++version) {
      rollout.set_version(version);
      rollout.weights_changed(restart);
      if (version % 5 == 0) rollout.submit(request(static_cast<uint64_t>(100 + version), prompt(20), 9));
      rollout.step();
      take(rollout, answers);
    }
    while (rollout.step()) take(rollout, answers);
    take(rollout, answers);
    CHECK(answers.at(0).tokens.size() == 30);
    for (size_t t = 0; t < 30; ++t) CHECK(answers.at(0).versions[t] == static_cast<int64_t>(t) + 1);
    CHECK(rollout.stats().pages_held == 0 && answers.size() == 26);
    // The weights were the same all the time: so are the tokens.
    CHECK(same(run(model, {request(0, prompt(40, 0), 30)}).at(0), answers.at(0)));
    model.transformer.begin_decoding();
  }
}

TEST(what_can_never_be_served_is_refused_with_numbers) {
  SmallModel model(long_model("qwen2"));
  Rollout rollout(model.transformer, {.kv_cache_bytes = 3 * page_bytes(model) + 5});
  CHECK(rollout.stats().pages == 3 && rollout.stats().cache_bytes == 3 * page_bytes(model));
  CHECK_THROWS(rollout.submit(request(0, prompt(90), 20)),
               "need 4 pages of 32 positions, and the cache has 3");
  CHECK_THROWS(rollout.submit(request(0, prompt(190), 20)), "are 210, more than the engine's 200 positions");
  CHECK(rollout.stats().prompt_tokens == 0);
  CHECK_THROWS(rollout.submit(request(0, {}, 20)), "the prompt is empty");
  CHECK_THROWS(rollout.submit(request(0, {50}, 20)), "token id 50 at position 0");
  CHECK_THROWS(Rollout(model.transformer, {.kv_cache_bytes = 5}), "less than one page");
  CHECK(run(rollout, {request(0, prompt(77), 20)}).at(0).tokens.size() == 20);
  CHECK(rollout.park(false) && rollout.stats().pages_held == 0);
  CHECK(run(rollout, {request(0, prompt(77), 20)}).at(0).tokens.size() == 20);
}

// Between two steps of training others need the memory: what is under way gives it back and is computed
// again.
TEST(what_is_running_gives_its_memory_back_when_it_is_preempted) {
  SmallModel model(long_model("qwen2"));
  model.transformer.begin_decoding();
  std::vector<RolloutRequest> requests;
  for (uint64_t i = 0; i < 5; ++i)
    requests.push_back(request(i, prompt(20 + 13 * static_cast<int64_t>(i), static_cast<int64_t>(i)), 30));
  const std::map<uint64_t, Answer> alone = run(model, requests);
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, {});
  std::map<uint64_t, Answer> answers;
  for (const RolloutRequest& one : requests) rollout.submit(one);
  for (int i = 0; i < 3; ++i) {
    for (int step = 0; step < 7; ++step) rollout.step();
    take(rollout, answers);
    CHECK(!rollout.park(false) && rollout.stats().pages_held > 0);
    CHECK(rollout.park(true));
    CHECK(rollout.stats().pages_held == 0 && rollout.stats().running == 0 && rollout.stats().waiting == 5);
  }
  while (rollout.step()) take(rollout, answers);
  take(rollout, answers);
  for (uint64_t i = 0; i < 5; ++i) CHECK(same(alone.at(i), answers.at(i)));
}

// Random lengths, priorities and aborts at random times, in a cache that is too small for all that runs.
TEST(ten_thousand_requests_leave_no_page_behind) {
  SmallModel model(long_model("qwen2"));
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer,
                  {.max_sequences = 64, .max_step_tokens = 512, .kv_cache_bytes = 12 * page_bytes(model)});
  std::mt19937 random(5);
  const auto up_to = [&](uint32_t most) { return static_cast<int64_t>(random() % most); };
  std::map<uint64_t, Answer> answers;
  uint64_t next = 0;
  while (next < 10000 || rollout.stats().running + rollout.stats().waiting > 0) {
    for (int64_t i = up_to(80); i > 0 && next < 10000; --i) {
      RolloutRequest r =
          request(next++, prompt(1 + (up_to(20) == 0 ? up_to(120) : up_to(12)), up_to(4)), 1 + up_to(30));
      r.priority = static_cast<double>(up_to(3));
      rollout.submit(r);
    }
    rollout.step();
    for (int64_t i = up_to(6); i > 0; --i)
      rollout.abort(next - std::min<uint64_t>(next, 1 + static_cast<uint64_t>(up_to(300))));
    take(rollout, answers);
  }
  CHECK(answers.size() == 10000);
  int64_t aborted = 0;
  for (const auto& [id, answer] : answers) {
    CHECK(answer.finish != Finish::kNone && answer.error.empty());
    aborted += answer.finish == Finish::kAbort;
  }
  CHECK(aborted > 100 && aborted < 5000);
  CHECK(rollout.stats().preemptions > 0);
  CHECK(rollout.stats().pages_held == 0);
}

TEST_MAIN()
