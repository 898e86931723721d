// Pages that turns and samples share, and what a step that fails leaves of them.
#include <ATen/ATen.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/error.h"
#include "check.h"
#include "rollout_requests.h"
#include "toy_decoder.h"

using namespace troupe;
using namespace troupe::test;

namespace {

// The next step fails, as one does for want of memory.
class FailingDecoder : public ToyDecoder {
 public:
  void embed(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& x) override {
    if (std::exchange(fails, false)) throw Error(ErrorCode::kOutOfMemory, "no memory");
    ToyDecoder::embed(tokens, positions, x);
  }

  bool fails = false;
};

}  // namespace

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
  rollout.weights_changed();
  CHECK(run(rollout, {request(4, history, 1)}).at(4).cached == 0);
}

// Also where few sequences, of few positions, run at a time.
TEST(prompts_stay_in_the_cache_as_long_as_there_is_memory) {
  SmallModel model(long_model("qwen3"));
  model.transformer.begin_decoding();
  RolloutOptions options{.max_sequences = 1, .max_positions = 64, .kv_cache_bytes = 40 * page_bytes(model)};
  const auto cached = [&] {
    Rollout rollout(model.transformer, options);
    int64_t found = 0;
    for (const uint64_t turn : {0, 1}) {
      for (uint64_t i = 0; i < 8; ++i)
        found += run(rollout, {request(8 * turn + i, prompt(40, static_cast<int64_t>(i)), 5)})
                     .begin()
                     ->second.cached;
    }
    CHECK(rollout.stats().pages_held == 0);
    return std::pair{rollout.stats().pages, found};
  };
  CHECK(cached() == std::pair(int64_t{40}, int64_t{8 * 39}));
  // Memory for so many pages as one sequence fills.
  options.kv_cache_bytes = 2 * page_bytes(model);
  CHECK(cached() == std::pair(int64_t{2}, int64_t{0}));
  options.kv_cache_bytes = 40 * page_bytes(model);
  options.prefix_caching = false;
  CHECK(cached() == std::pair(int64_t{2}, int64_t{0}));
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

// It waits for its mask with all of its prompt found, the last of it in a page that is copied with its first
// row.
TEST(one_given_up_before_its_first_row_leaves_no_page_that_was_not_written) {
  SmallModel model(long_model("qwen3"));
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, {});
  const auto first = run(rollout, {request(1, prompt(40), 5)}).at(1);
  Tokens history = prompt(40);
  history.insert(history.end(), first.tokens.begin(), first.tokens.end());
  RolloutRequest masked = request(2, history, 5);
  masked.sampling.constrained = true;
  rollout.submit(masked);
  CHECK(!rollout.step() && rollout.stats().running == 1);
  rollout.abort(2);
  history.push_back(3);
  const auto next = run(rollout, {request(3, history, 5)}).at(3);
  CHECK(next.cached == 44 && rollout.stats().pages_held == 0);
  CHECK(same(run(model, {request(3, history, 5)}).at(3), next));
}

// With keys of both weights in its pages.
TEST(what_goes_on_under_other_weights_leaves_nothing_until_it_is_computed_again) {
  SmallModel model(long_model("qwen3"));
  for (const auto& [length, again] :
       std::vector<std::pair<int64_t, bool>>{{70, false}, {70, true}, {20, false}, {20, true}}) {
    model.transformer.begin_decoding();
    Rollout rollout(model.transformer, {.max_step_tokens = 40});
    rollout.submit(request(1, prompt(length), length / 2));
    rollout.step();
    rollout.weights_changed();
    if (again) CHECK(rollout.park(/*preempt=*/true));
    const std::map<uint64_t, Answer> answers = run(rollout, {});
    CHECK((rollout.stats().pages_indexed > 0) == again);
    Tokens turn = prompt(length);
    turn.insert(turn.end(), answers.at(1).tokens.begin(), answers.at(1).tokens.end());
    turn.push_back(3);
    CHECK(run(rollout, {request(3, turn, 1)}).at(3).cached == (again ? length + length / 2 - 1 : 0));
    model.transformer.end_decoding();
  }
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

// Whichever sample a conversation goes on from, its next turn finds all of it.
TEST(every_sample_of_a_prompt_leaves_its_pages_to_be_found) {
  SmallModel model(long_model("qwen3"));
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, {});
  std::vector<RolloutRequest> samples;
  for (uint64_t i = 0; i < 3; ++i) samples.push_back(request(i, prompt(40), 60));
  const std::map<uint64_t, Answer> answers = run(rollout, samples);
  for (const RolloutRequest& sample : samples) {
    Tokens turn = sample.prompt;
    const Tokens& response = answers.at(sample.id).tokens;
    turn.insert(turn.end(), response.begin(), response.end());
    turn.push_back(3);
    CHECK(run(rollout, {request(10 + sample.id, turn, 1)}).at(10 + sample.id).cached == 40 + 60 - 1);
  }
  model.transformer.end_decoding();
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

// Its pages have nothing of the positions that are yet to be computed.
TEST(what_is_given_up_while_it_is_computed_again_does_not_say_where_its_tokens_went) {
  SmallModel model(long_model("qwen3_moe"));
  for (const int64_t steps : {0, 1}) {
    model.transformer.begin_decoding();
    Rollout rollout(model.transformer, {.max_step_tokens = 40, .routed_experts = true});
    rollout.submit(request(1, prompt(60), 30));
    for (int64_t step = 0; step < 5; ++step) rollout.step();
    CHECK(rollout.park(/*preempt=*/true));
    for (int64_t step = 0; step < steps; ++step) rollout.step();
    rollout.abort(1);
    const std::vector<RolloutOutput> outputs = rollout.take_outputs();
    CHECK(outputs.size() == 1 && outputs[0].finish == Finish::kAbort && outputs[0].tokens.size() == 4);
    CHECK(outputs[0].routed_experts.empty() && rollout.stats().pages_held == 0);
    model.transformer.end_decoding();
  }
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
