#include <utility>

#include "check.h"
#include "rollout_answers.h"

// Prefix-cache hits where layers keep states: from snapshots behind pages.

using namespace troupe;
using namespace troupe::test;

namespace {

Tokens behind(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

Tokens first_of(const Tokens& tokens, int64_t count) {
  return {tokens.begin(), tokens.begin() + count};
}

// What a rollout of nothing else answers.
Answer alone(Decoder& decoder, const RolloutRequest& r) {
  return run(decoder, {r}).at(r.id);
}

// As alone, with so many positions of the prompt found and no more rows computed than the others have.
void check_hit(Decoder& decoder, Rollout& rollout, const RolloutRequest& r, int64_t cached) {
  const int64_t computed = rollout.stats().computed_tokens;
  const Answer answer = run(rollout, {r}).at(r.id);
  CHECK(answer == alone(decoder, r));
  CHECK(answer.cached == cached);
  CHECK(rollout.stats().computed_tokens - computed ==
        static_cast<int64_t>(r.prompt.size()) + r.sampling.max_new_tokens - 1 - cached);
  CHECK(rollout.stats().slots_held == 0 && rollout.stats().pages_held == 0);
}

RolloutOptions with_slots(int64_t slots) {
  RolloutOptions options;
  options.state_slots = slots;
  return options;
}

}  // namespace

TEST(a_second_turn_goes_on_behind_the_last_row_of_the_first) {
  for (const char* variant : {"qwen3_5", "qwen3_next", "nemotron_h", "olmo_hybrid"}) {
    SmallModel model(long_model(variant));
    // The first ends within a page, and at the end of one.
    for (const int64_t length : {100, 109}) {
      Rollout rollout(model.transformer, {});
      Tokens history = prompt(length);
      history = behind(history, run(rollout, {request(1, history, 20)}).at(1).tokens);
      history = behind(history, prompt(11, 3));
      // The last sampled token has not been through the model.
      check_hit(model.transformer, rollout, request(2, history, 10), length + 19);
      // The state of the first turn is still there, for another second turn.
      check_hit(model.transformer, rollout,
                request(3, behind(first_of(history, length + 20), prompt(5, 4)), 10), length + 19);
    }
  }
}

TEST(a_turn_that_departs_from_what_was_sampled_goes_on_from_the_prompt) {
  SmallModel model(long_model("qwen3_5"));
  Rollout rollout(model.transformer, {});
  const Tokens sampled = run(rollout, {request(1, prompt(100), 40)}).at(1).tokens;
  // Without the last tokens, as a template that trims them has it.
  const Tokens history = behind(behind(prompt(100), first_of(sampled, 30)), prompt(9, 3));
  check_hit(model.transformer, rollout, request(2, history, 8), 96);
  check_hit(model.transformer, rollout, request(3, prompt(100), 8), 96);
  check_hit(model.transformer, rollout, request(4, first_of(prompt(100), 97), 8), 96);
  // Of the whole pages one position is left to compute: there is no state before it.
  check_hit(model.transformer, rollout, request(5, first_of(prompt(100), 96), 8), 0);
}

// One that ends with a page leaves the state before that page, from which the same prompt goes on.
TEST(a_prompt_of_whole_pages_is_found_but_for_the_last_one) {
  SmallModel model(long_model("qwen3_5"));
  Rollout rollout(model.transformer, {});
  check_hit(model.transformer, rollout, request(1, prompt(96), 8), 0);
  check_hit(model.transformer, rollout, request(2, prompt(96), 8), 64);
}

// They need every position's hidden state, whatever is there to go on from.
TEST(log_probs_of_a_prompt_are_computed_from_its_beginning) {
  SmallModel model(long_model("qwen3_5"));
  for (const int64_t length : {20, 70}) {
    Rollout rollout(model.transformer, {});
    Tokens history = prompt(length);
    history = behind(history, run(rollout, {request(1, history, 5)}).at(1).tokens);
    RolloutRequest asked = request(2, behind(history, prompt(3, 9)), 2);
    asked.sampling.prompt_log_probs = true;
    check_hit(model.transformer, rollout, asked, 0);
  }
}

TEST(what_two_prompts_have_in_common_a_third_one_finds) {
  SmallModel model(long_model("qwen3_next"));
  Rollout rollout(model.transformer, {});
  const auto question = [](uint64_t id, int64_t length) {
    return request(id, behind(prompt(70), prompt(length, 5 + static_cast<int64_t>(id))), 6);
  };
  check_hit(model.transformer, rollout, question(1, 40), 0);
  check_hit(model.transformer, rollout, question(2, 50), 0);
  check_hit(model.transformer, rollout, question(3, 60), 64);
  check_hit(model.transformer, rollout, question(4, 3), 64);
}

TEST(a_prompt_in_chunks_leaves_the_same_snapshots) {
  SmallModel model(long_model("qwen3_5"));
  for (const int64_t chunk : {1, 7, 32, 48, 64}) {
    Rollout rollout(model.transformer, {.max_step_tokens = chunk});
    check_hit(model.transformer, rollout, request(1, prompt(110), 1), 0);
    check_hit(model.transformer, rollout, request(2, behind(first_of(prompt(110), 100), prompt(9, 3)), 1),
              96);
    check_hit(model.transformer, rollout, request(3, behind(first_of(prompt(110), 80), prompt(9, 3)), 1), 0);
    check_hit(model.transformer, rollout, request(4, behind(first_of(prompt(110), 80), prompt(9, 4)), 1), 64);
  }
}

TEST(snapshots_give_way_to_what_runs_the_least_lately_found_first) {
  SmallModel model(long_model("qwen3_5"));
  Rollout rollout(model.transformer, with_slots(4));
  const auto turn = [](uint64_t id, int64_t salt) { return request(id, prompt(70, salt), 2); };
  // Two snapshots each: behind the prompt's last full page, and at the end.
  check_hit(model.transformer, rollout, turn(1, 1), 0);
  check_hit(model.transformer, rollout, turn(2, 2), 0);
  CHECK(rollout.stats().snapshots == 4);
  check_hit(model.transformer, rollout, turn(3, 1), 64);
  check_hit(model.transformer, rollout, turn(4, 3), 0);
  CHECK(rollout.stats().snapshots == 4);
  check_hit(model.transformer, rollout, turn(5, 1), 64);
  check_hit(model.transformer, rollout, turn(6, 2), 0);
  // Four that run at once leave room for none, and none takes the place of one of them.
  std::vector<RolloutRequest> four;
  for (uint64_t id = 10; id < 14; ++id) four.push_back(request(id, prompt(70, static_cast<int64_t>(id)), 20));
  for (const RolloutRequest& r : four) rollout.submit(r);
  Answers answers;
  rollout.step();
  take(rollout, answers);
  CHECK(rollout.stats().running == 4 && rollout.stats().slots_held == 4 && rollout.stats().snapshots == 0);
  answers = finish(rollout, std::move(answers));
  for (const RolloutRequest& r : four) CHECK(answers.at(r.id) == alone(model.transformer, r));
}

// With one slot the next sequence goes on in the place of the snapshot itself.
TEST(one_slot_is_enough_for_a_conversation) {
  SmallModel model(long_model("qwen3_5"));
  Rollout rollout(model.transformer, with_slots(1));
  Tokens history = prompt(40);
  int64_t cached = 0;
  for (uint64_t turn = 1; turn < 6; ++turn) {
    const RolloutRequest r = request(turn, history, 9);
    const Tokens made = alone(model.transformer, r).tokens;
    check_hit(model.transformer, rollout, r, cached);
    cached = static_cast<int64_t>(history.size()) + 8;
    history = behind(behind(history, made), prompt(3, static_cast<int64_t>(turn)));
  }
}

TEST(a_snapshot_goes_with_its_pages) {
  SmallModel model(long_model("qwen3_5"));
  RolloutOptions options = with_slots(8);
  options.kv_cache_bytes = 8 * StateCache::slot_bytes(model.config, at::kFloat) +
                           6 * KvCache::page_bytes(model.config, at::kFloat);
  Rollout rollout(model.transformer, options);
  check_hit(model.transformer, rollout, request(1, prompt(70, 1), 2), 0);
  CHECK(rollout.stats().snapshots == 2);
  // Takes all six pages.
  check_hit(model.transformer, rollout, request(2, prompt(180, 2), 2), 0);
  CHECK(rollout.stats().snapshots == 2);
  check_hit(model.transformer, rollout, request(3, prompt(70, 1), 2), 0);
}

TEST(other_weights_and_salts_find_no_snapshot) {
  SmallModel model(long_model("qwen3_5"));
  Rollout rollout(model.transformer, {});
  check_hit(model.transformer, rollout, request(1, prompt(70), 2), 0);
  RolloutRequest salted = request(2, prompt(70), 2);
  salted.salt = 1;
  check_hit(model.transformer, rollout, salted, 0);
  // One runs on with states of both, and leaves none.
  rollout.submit(request(3, prompt(70), 20));
  for (int64_t step = 0; step < 4; ++step) rollout.step();
  rollout.weights_changed();
  CHECK(rollout.stats().snapshots == 0);
  finish(rollout);
  CHECK(rollout.stats().snapshots == 0 && rollout.stats().slots_held == 0);
  check_hit(model.transformer, rollout, request(4, prompt(70), 2), 0);
  check_hit(model.transformer, rollout, request(5, prompt(70), 2), 64);
  CHECK(rollout.park(/*preempt=*/false));
  CHECK(rollout.stats().snapshots == 0);
  check_hit(model.transformer, rollout, request(6, prompt(70), 2), 0);
}

TEST(without_a_prefix_cache_nothing_is_kept) {
  SmallModel model(long_model("qwen3_5"));
  Rollout rollout(model.transformer, {.prefix_caching = false});
  check_hit(model.transformer, rollout, request(1, prompt(70), 2), 0);
  check_hit(model.transformer, rollout, request(2, prompt(70), 2), 0);
  CHECK(rollout.stats().snapshots == 0 && rollout.stats().pages_indexed == 0);
}

TEST(what_was_preempted_goes_on_from_the_deepest_snapshot) {
  SmallModel model(long_model("qwen3_5"));
  std::vector<RolloutRequest> requests;
  for (uint64_t id = 0; id < 3; ++id)
    requests.push_back(request(id, prompt(65, static_cast<int64_t>(id)), 90));
  const Answers expected = run(model.transformer, requests);
  int64_t computed[2];
  for (const bool caching : {false, true}) {
    RolloutOptions options = with_slots(12);
    options.prefix_caching = caching;
    options.kv_cache_bytes = 12 * StateCache::slot_bytes(model.config, at::kFloat) +
                             12 * KvCache::page_bytes(model.config, at::kFloat);
    Rollout rollout(model.transformer, options);
    CHECK(run(rollout, requests) == expected);
    CHECK(rollout.stats().preemptions > 0);
    computed[caching] = rollout.stats().computed_tokens;
  }
  // At least the pages of its prompt.
  CHECK(computed[1] <= computed[0] - 64);
}

// An aborted prompt leaves what it has computed.
TEST(an_aborted_sequence_leaves_its_state) {
  SmallModel model(long_model("qwen3_5"));
  Rollout rollout(model.transformer, {.max_step_tokens = 50});
  rollout.submit(request(1, prompt(120), 4));
  rollout.step();
  rollout.abort(1);
  rollout.take_outputs();
  check_hit(model.transformer, rollout, request(2, prompt(120), 4), 50);
}

TEST_MAIN()
