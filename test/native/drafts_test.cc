#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "check.h"
#include "rollout/drafter.h"
#include "rollout_answers.h"

using namespace troupe;
using namespace troupe::test;

namespace {

Sequence said(Tokens prompt, const Tokens& response, uint64_t salt = 0) {
  Sequence sequence;
  sequence.tokens = prompt;
  sequence.tokens.insert(sequence.tokens.end(), response.begin(), response.end());
  sequence.request.prompt = std::move(prompt);
  sequence.request.salt = salt;
  return sequence;
}

Tokens draft(Sequence& sequence, int64_t count, const DraftOptions& options) {
  Drafter drafter(options);
  drafter.begin(sequence);
  return drafter.guess(sequence, count).tokens;
}

// Prompts that come several times, with other seeds; greedy ones, which repeat themselves, and others.
std::vector<RolloutRequest> groups(int64_t prompts, int64_t samples) {
  std::vector<RolloutRequest> requests;
  for (int64_t i = 0; i < prompts * samples; ++i) {
    const int64_t which = i / samples;
    RolloutRequest r =
        request(static_cast<uint64_t>(i), prompt(3 + which * 37 % 90, which), 20 + i * 13 % 60);
    r.sampling.temperature = i % 3 == 0 ? 0 : 0.2 * static_cast<double>(i % 4);
    if (i % 5 == 1) r.sampling.top_k = 4;
    if (i % 5 == 2) r.sampling.top_p = 0.8;
    if (i % 7 == 3) r.sampling.repetition_penalty = 1.3;
    if (i % 7 == 4) r.sampling.logit_bias = {{3, 2.0f}};
    if (i % 7 == 5) r.sampling.bad_words = {{5}, {7, 9}};
    if (i % 4 == 2) r.sampling.stop_token_ids = {11, 17, 30};
    requests.push_back(std::move(r));
  }
  return requests;
}

RolloutOptions drafting(int64_t tokens, int64_t least = 1) {
  RolloutOptions options;
  options.drafts = {.num_tokens = tokens, .min_match = least, .max_sequences = 1000};
  return options;
}

Answers answers_of(SmallModel& model, const std::vector<RolloutRequest>& requests,
                   const RolloutOptions& options, RolloutStats& stats) {
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, options);
  Answers answers = run(rollout, requests);
  model.transformer.end_decoding();
  stats = rollout.stats();
  CHECK(stats.pages_held == 0);
  return answers;
}

}  // namespace

TEST(a_draft_is_what_stands_behind_the_longest_match) {
  // 1 2 3 stands twice, 2 3 once more behind it: the longer match counts, and of equal ones the last.
  Sequence sequence = said({1, 2, 3, 40, 1, 2, 3, 41, 2, 3, 42, 9}, {1, 2, 3});
  CHECK((draft(sequence, 4, {.num_tokens = 4}) == Tokens{41, 2, 3, 42}));
  CHECK((draft(sequence, 2, {.num_tokens = 4}) == Tokens{41, 2}));
  CHECK((draft(sequence, 4, {.num_tokens = 1}) == Tokens{41}));
  CHECK((draft(sequence, 4, {.num_tokens = 4, .max_match = 2}) == Tokens{42, 9, 1, 2}));
  CHECK((draft(sequence, 4, {.num_tokens = 4, .min_match = 4, .max_match = 4}).empty()));
  CHECK(draft(sequence, 0, {.num_tokens = 4}).empty());
  // Of one token alone there is no pair to look up.
  Sequence short_one = said({5}, {});
  CHECK(draft(short_one, 4, {.num_tokens = 4, .min_match = 1}).empty());
}

TEST(places_are_found_wherever_they_are) {
  for (int64_t place = 0; place < 300; ++place) {
    Tokens text(300, 7);
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(1000 + i);
    text[static_cast<size_t>(place)] = 1;
    Sequence sequence = said(text, {1});
    const Tokens found = draft(sequence, 1, {.num_tokens = 1, .min_match = 1});
    CHECK(found == Tokens{place < 299 ? static_cast<int32_t>(1001 + place) : 1});
  }
}

TEST(a_text_that_repeats_itself_goes_on_so) {
  Sequence sequence = said({7, 1, 2, 3}, {1, 2, 3, 1, 2, 3});
  CHECK((draft(sequence, 4, {.num_tokens = 4, .max_match = 3}) == Tokens{1, 2, 3, 1}));
  CHECK((draft(sequence, 4, {.num_tokens = 4}) == Tokens{1, 2, 3}));
}

TEST(other_responses_to_a_prompt_are_looked_up) {
  Drafter drafter({.num_tokens = 3});
  Sequence first = said({1, 2}, {10, 11, 12, 13}), second = said({1, 2}, {10, 11});
  Sequence stranger = said({1, 3}, {10, 11, 50}), salted = said({1, 2}, {10, 11, 60}, 1);
  for (Sequence* sequence : {&first, &second, &stranger, &salted}) drafter.begin(*sequence);
  CHECK((drafter.guess(second, 3).tokens == Tokens{12, 13}));
  // Of one that has ended a copy is left, the prompt's last tokens before it: a response is drafted from its
  // first token on.
  drafter.end(first);
  first.tokens.assign(6, 0);
  CHECK((drafter.guess(second, 3).tokens == Tokens{12, 13}));
  Sequence third = said({1, 2}, {});
  drafter.begin(third);
  CHECK((drafter.guess(third, 3).tokens == Tokens{10, 11, 12}));
  // What the sequence has said itself comes first, where it matches as far.
  second.tokens = {1, 2, 10, 11, 70, 10, 11};
  CHECK((drafter.guess(second, 1).tokens == Tokens{70}));
}

TEST(what_has_ended_is_forgotten_in_its_order) {
  Drafter drafter({.num_tokens = 2, .remembered_tokens = 12});
  for (int32_t i = 0; i < 5; ++i) {
    Sequence sequence = said({i, i + 100}, {1, 2, 3, 4});
    drafter.begin(sequence);
    drafter.end(sequence);
    CHECK(drafter.remembered() == std::min(12, 6 * (i + 1)));
  }
  for (int32_t i = 0; i < 5; ++i) {
    Sequence again = said({i, i + 100}, {});
    drafter.begin(again);
    CHECK(drafter.guess(again, 2).tokens.empty() == (i < 3));
    drafter.end(again);
  }
  // One longer than all that may be remembered leaves the others alone.
  Sequence longer = said({1, 2}, Tokens(20, 5));
  drafter.begin(longer);
  drafter.end(longer);
  CHECK(drafter.remembered() == 12);
}

TEST(a_guess_is_drafted_as_far_as_it_pays) {
  Drafter drafter({.num_tokens = 8, .max_match = 4, .max_sequences = 16});
  CHECK(drafter.drafts(16) && !drafter.drafts(17));
  const Guess guess{2, {1, 2, 3, 4, 5, 6}};
  // Nothing is known: every token is right with one half, and worth a row up to a share of 1, 2, 4, 8 of 16.
  CHECK(drafter.worth(guess, 1) == 4 && drafter.worth(guess, 2) == 3 && drafter.worth(guess, 4) == 2);
  CHECK(drafter.worth(guess, 8) == 1 && drafter.worth(guess, 9) == 0 && drafter.worth(guess, 16) == 0);
  CHECK(drafter.worth({}, 1) == 0);
  // Behind two tokens always right, behind three never, behind four and more always again.
  for (int64_t i = 0; i < 2000; ++i) {
    drafter.guessed(guess, 0, true);
    drafter.guessed(guess, 1, false);
    drafter.guessed(guess, 2 + i % 4, true);
  }
  CHECK(drafter.worth(guess, 1) == 1 && drafter.worth(guess, 15) == 1 && drafter.worth(guess, 16) == 0);
  CHECK(drafter.worth({3, {1, 2}}, 1) == 0);
  CHECK(drafter.worth({4, {1, 2, 3, 4, 5, 6}}, 12) == 6);
  CHECK(drafter.worth({1, {1, 2, 3, 4, 5, 6}}, 7) == 2);
  // What has changed is learnt anew.
  for (int64_t i = 0; i < 600; ++i) drafter.guessed(guess, 1, true);
  CHECK(drafter.worth(guess, 8) == 6);
}

TEST(drafts_change_no_token) {
  for (const char* variant : {"qwen3", "gpt2", "gemma2", "gemma3", "qwen3_moe", "deepseek_v3", "gpt_oss",
                              "latent", "olmo3", "granite"}) {
    ModelConfig config = long_model(variant);
    if (config.sliding_windows.size() > 0) config.sliding_windows[0] = 40;
    SmallModel model(config);
    const std::vector<RolloutRequest> requests = groups(6, 6);
    RolloutStats without, with;
    const Answers expected = answers_of(model, requests, {}, without);
    CHECK(without.drafted_tokens == 0 && without.drafts == 0);
    for (const int64_t tokens : {1, 3, 16}) {
      CHECK(answers_of(model, requests, drafting(tokens), with) == expected);
      CHECK(with.accepted_tokens > 0 && with.accepted_tokens <= with.drafted_tokens);
      CHECK(with.drafts > 0 && with.drafts <= with.drafted_tokens &&
            with.drafted_tokens <= tokens * with.drafts);
      CHECK(with.generated_tokens == without.generated_tokens);
      CHECK(with.steps < without.steps);
    }
    RolloutOptions few = drafting(5);
    few.max_step_tokens = 16;
    CHECK(answers_of(model, requests, few, with) == expected);
    few.max_sequences = 3;
    few.prefix_caching = false;
    CHECK(answers_of(model, requests, few, with) == expected);
    few = drafting(5);
    few.kv_cache_bytes = 5 * KvCache::page_bytes(config, at::kFloat);
    CHECK(answers_of(model, requests, few, with) == expected);
    CHECK(with.preemptions > 0 && with.accepted_tokens > 0);
  }
}

TEST(log_probs_of_likely_tokens_and_of_prompts_are_those_of_one_token_at_a_time) {
  SmallModel model(long_model("qwen3"));
  std::vector<RolloutRequest> requests = groups(2, 4);
  for (RolloutRequest& r : requests) {
    r.sampling.top_log_probs = 5;
    r.sampling.prompt_log_probs = true;
  }
  const auto outputs = [&](const RolloutOptions& options) {
    model.transformer.begin_decoding();
    Rollout rollout(model.transformer, options);
    for (const RolloutRequest& r : requests) rollout.submit(r);
    while (rollout.step()) {
    }
    auto list = rollout.take_outputs();
    std::sort(list.begin(), list.end(),
              [](const RolloutOutput& a, const RolloutOutput& b) { return a.id < b.id; });
    CHECK((rollout.stats().accepted_tokens > 0) == (options.drafts.num_tokens > 0));
    model.transformer.end_decoding();
    return list;
  };
  const auto one = outputs({}), drafted = outputs(drafting(4));
  CHECK(one.size() == requests.size() && drafted.size() == one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    CHECK(one[i].tokens == drafted[i].tokens && one[i].finish == drafted[i].finish);
    // The first of a prompt is NaN.
    CHECK(std::equal(one[i].prompt_log_probs.begin() + 1, one[i].prompt_log_probs.end(),
                     drafted[i].prompt_log_probs.begin() + 1, drafted[i].prompt_log_probs.end()));
    CHECK(one[i].top.size() == one[i].tokens.size() && drafted[i].top.size() == one[i].top.size());
    for (size_t t = 0; t < one[i].top.size(); ++t) {
      for (size_t k = 0; k < 5; ++k) {
        CHECK(one[i].top[t][k].token == drafted[i].top[t][k].token);
        CHECK(one[i].top[t][k].log_prob == drafted[i].top[t][k].log_prob);
      }
    }
  }
}

TEST(a_remembered_response_is_said_again_in_few_steps) {
  SmallModel model(long_model("qwen3"));
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, drafting(7));
  RolloutRequest r = request(1, prompt(40), 64);
  const Answers first = run(rollout, {r});
  const int64_t before = rollout.stats().steps, accepted = rollout.stats().accepted_tokens;
  // The same seed: every guess is right. The prompt's step gives the first token, each of the others eight.
  r.id = 2;
  CHECK(run(rollout, {r}).at(2) == first.at(1));
  CHECK(rollout.stats().steps - before == 1 + 8);
  CHECK(rollout.stats().accepted_tokens - accepted == 63 - 8);
  // The pages that drafts have filled are found by a next turn.
  Tokens turn = r.prompt;
  turn.insert(turn.end(), first.at(1).tokens.begin(), first.at(1).tokens.end());
  turn.push_back(3);
  CHECK(run(rollout, {request(3, turn, 2)}).at(3).cached == 40 + 64 - 1);
  model.transformer.end_decoding();
}

// But for one position the prompt is found: its row is that of a sequence that could be drafted, and the
// other samples go on from it.
TEST(samples_that_share_a_row_are_not_drafted_in_it) {
  SmallModel model(long_model("qwen3"));
  model.transformer.begin_decoding();
  Rollout rollout(model.transformer, drafting(4));
  std::vector<RolloutRequest> samples;
  for (uint64_t id = 0; id < 4; ++id) samples.push_back(request(id, Tokens(65, 7), 6));
  RolloutStats stats;
  const Answers alone = answers_of(model, samples, {}, stats);
  model.transformer.begin_decoding();
  RolloutRequest first = request(9, Tokens(65, 7), 2);
  run(rollout, {first});
  CHECK(run(rollout, samples) == alone);
  model.transformer.end_decoding();
}

TEST(many_sequences_decode_without_drafts) {
  SmallModel model(long_model("qwen3"));
  RolloutOptions options = drafting(4);
  options.drafts.max_sequences = 2;
  RolloutStats stats;
  std::vector<RolloutRequest> requests;
  for (uint64_t i = 0; i < 3; ++i) {
    requests.push_back(request(i, prompt(20, static_cast<int64_t>(i)), 40));
    requests.back().sampling.temperature = 0;
  }
  answers_of(model, requests, options, stats);
  CHECK(stats.drafts == 0);
  for (size_t i = 0; i < 2; ++i) requests[i].sampling.max_new_tokens = 2;
  answers_of(model, requests, options, stats);
  CHECK(stats.drafts > 0);
}

TEST(a_new_request_comes_before_drafts) {
  SmallModel model(long_model("qwen3"));
  model.transformer.begin_decoding();
  RolloutOptions options = drafting(8);
  options.max_step_tokens = 8;
  Rollout rollout(model.transformer, options);
  RolloutRequest r = request(1, prompt(8), 64);
  const Answers first = run(rollout, {r});
  // Guesses would fill every step of the second.
  r.id = 2;
  rollout.submit(r);
  rollout.step();
  rollout.step();
  CHECK(rollout.stats().accepted_tokens > 0);
  rollout.submit(request(3, prompt(3, 1), 1));
  rollout.step();
  Answers answers;
  take(rollout, answers);
  CHECK(answers.at(3).tokens.size() == 1);
  CHECK(finish(rollout, answers).at(2) == first.at(1));
  model.transformer.end_decoding();
}

TEST(options_of_drafts_that_make_no_sense_are_refused) {
  SmallModel model(long_model("qwen3"));
  const auto refused = [&](const DraftOptions& drafts, const char* message) {
    RolloutOptions options;
    options.drafts = drafts;
    CHECK_THROWS(Rollout(model.transformer, options), message);
  };
  refused({.num_tokens = -1}, "expected num_speculative_tokens >= 0 but got -1");
  refused({.num_tokens = 1, .min_match = 0},
          "expected 1 <= prompt_lookup_min <= prompt_lookup_max <= 256 but got 0 and 8");
  refused({.num_tokens = 1, .min_match = 9}, "but got 9 and 8");
  refused({.num_tokens = 1, .max_match = 257}, "but got 2 and 257");
  refused({.num_tokens = 1, .max_sequences = 0}, "expected disable_by_batch_size >= 1 but got 0");
  refused({.num_tokens = 1, .remembered_tokens = -1}, "expected history_tokens >= 0 but got -1");
}

TEST_MAIN()
