// Drafts by a model's own layer for further tokens: what it guesses, and that no token changes.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "batch/further_tokens.h"
#include "check.h"
#include "prediction_reference.h"
#include "rollout/step_runner.h"
#include "rollout/token_predictor.h"
#include "rollout_answers.h"

using namespace troupe;
using namespace troupe::test;

namespace {

ModelConfig predicting(const std::string& variant, int64_t layers = 1, bool hidden_first = false) {
  ModelConfig config = long_model(variant);
  config.prediction = PredictionConfig{layers, hidden_first};
  return config;
}

RolloutOptions drafting(int64_t tokens) {
  RolloutOptions options;
  options.drafts = {.num_tokens = tokens, .predicts = true, .max_sequences = 1'000'000};
  return options;
}

// Pages with the layer for further tokens, and states of so many sequences and half of them once more.
int64_t cache_of(ModelConfig config, at::ScalarType dtype, int64_t sequences, int64_t pages) {
  const int64_t states = StateCache::slot_bytes(config, dtype) * (sequences + sequences / 2);
  config.num_layers += 1;
  if (config.linear) config.linear_layers.push_back(false);
  return pages * KvCache::page_bytes(config, dtype) + states;
}

// Answers of a rollout, and what it counted.
struct Run {
  Answers answers;
  RolloutStats stats;
};

Run run_of(SmallModel& model, const std::vector<RolloutRequest>& requests, const RolloutOptions& options) {
  model.transformer.begin_decoding(options.form());
  Rollout rollout(model.transformer, options);
  Run found{run(rollout, requests), {}};
  found.stats = rollout.stats();
  model.transformer.end_decoding();
  return found;
}

// What the layer guesses behind each row of a sequence, as training computes it: of token t + 2 from row t.
Tokens guesses_of(SmallModel& model, const Tokens& tokens) {
  const TokenBatch batch{at::tensor(tokens, at::kInt),
                         at::tensor({0, static_cast<int>(tokens.size())}, at::kInt),
                         at::tensor({1}, at::kInt)};
  const BatchLayout layout = check_layout(batch, model.config.vocab_size, model.config.max_positions);
  const MicroBatch micro = pack(layout, 0, 1, 4096).front();
  const RowPadding padding{kRowTile, 4096, false};
  const PackedTokens packed = gather(batch, layout, micro, padded_rows(micro, padding));
  Tokens guesses(tokens.size(), -1);
  PredictionTask task;
  for (int64_t depth = 1; depth <= model.config.prediction_layers(); ++depth)
    task.layers.push_back(further_rows(further_tokens(batch, layout, depth), micro,
                                       depth == 1 ? packed : task.layers.back().packed, padding));
  task.gradient = [&](size_t k, const PackedTokens& rows, const at::Tensor& outputs) {
    if (k > 0) return at::zeros_like(outputs);
    const Stage& stage = model.transformer.stages().back();
    const at::Tensor best =
        at::matmul(outputs.to(at::kFloat), stage.head_weight().to(at::kFloat).t()).argmax(1);
    for (int64_t i = 0; i < rows.predict_rows.size(0); ++i) {
      const int32_t position = rows.positions[rows.predict_rows[i]].item<int32_t>();
      guesses[static_cast<size_t>(position + 2)] = static_cast<int32_t>(best[i].item<int64_t>());
    }
    return at::zeros_like(outputs);
  };
  Stage& stage = model.transformer.stages().front();
  StagePass pass(true);
  const at::Tensor hidden = stage.forward(&packed, {}, pass);
  pass.predictions = task;
  stage.backward(at::zeros_like(hidden), pass);
  return guesses;
}

}  // namespace

// A response alone, one guess per step: of the guesses that are made those are taken that training's pass
// over the whole sequence makes, too.
TEST(guesses_are_those_of_the_layer_over_the_whole_sequence) {
  int64_t accepted = 0;
  for (const char* variant :
       {"llama", "qwen3", "deepseek_v3", "glm4_moe", "gemma3", "gpt_oss", "qwen3_5", "qwen3_next"}) {
    SmallModel model(predicting(variant, 1 + (variant[0] == 'g' ? 1 : 0), variant[0] == 'q'));
    for (int64_t which = 0; which < 4; ++which) {
      const Tokens asked = prompt(3 + 20 * which, which);
      RolloutRequest r = request(1, asked, 190 - static_cast<int64_t>(asked.size()));
      r.sampling.temperature = 0;
      r.sampling.top_k = 1;
      const Run found = run_of(model, {r}, drafting(1));
      Tokens all = asked;
      const Tokens& said = found.answers.at(1).tokens;
      all.insert(all.end(), said.begin(), said.end());
      const Tokens guesses = guesses_of(model, all);
      int64_t drafts = 0, right = 0;
      // The prompt's step gives a token without a draft. The last token is drafted by no step.
      for (size_t length = asked.size() + 1; length < all.size();) {
        const bool drafted = length + 1 < all.size();
        const bool taken = drafted && guesses[length] == all[length];
        drafts += drafted;
        right += taken;
        length += taken ? 2 : 1;
      }
      CHECK(found.stats.drafts == drafts && found.stats.accepted_tokens == right);
      accepted += right;
    }
  }
  CHECK(accepted > 20);
}

// Chunks of a prompt, and then tokens of which the layer has guessed the ones before itself.
TEST(outputs_are_those_of_double_precision) {
  for (const bool hidden_first : {false, true}) {
    const ModelConfig config = predicting("llama", 1, hidden_first);
    SmallModel model(config);
    std::map<std::string, at::Tensor> weights;
    for (const Parameter& p : model.store.all()) weights[p.info.name] = p.master;
    const PredictionReference reference(weights, config);

    constexpr int64_t kLength = 41, kFurther = 3;
    Sequence sequence;
    sequence.request.id = 5;
    sequence.tokens = prompt(kLength);
    sequence.request.prompt = sequence.tokens;
    sequence.pages = {4, 1, 2};
    ModelConfig cached = config;
    cached.num_layers += 1;
    const KvCache cache(cached, at::kFloat, at::kCPU, 6);
    const StateCache states(config, at::kFloat, at::kCPU, 0);
    model.transformer.begin_decoding({.predicts = true});
    StepRunner runner(model.transformer, config, cache, states);
    TokenPredictor predictor(model.transformer, config, cache);
    std::vector<FollowedRows> followed;
    at::Tensor y;
    // The last token follows the last row, as if it had been sampled.
    for (const int64_t count : {7, 20, 13}) {
      StepPlan plan;
      plan.runs.push_back({.sequence = &sequence, .count = count});
      plan.rows = count;
      plan.apart = false;
      followed = {*followed_rows(sequence, plan.runs.front(), 0)};
      CHECK(followed.front().count() == count && followed.front().position == sequence.computed);
      runner.run(plan, {count - 1}, nullptr, /*whole=*/true);
      sequence.computed += count;
      // Nothing is guessed behind the first ones.
      const std::vector<size_t> guessing(sequence.computed == kLength - 1 ? 1 : 0, 0);
      y = predictor.follow(followed, runner.rows(), guessing);
    }
    const auto logits_of = [&](const at::Tensor& rows) {
      const at::Tensor logits = at::empty({rows.size(0), config.vocab_size});
      model.transformer.prediction_logits(rows, logits);
      return logits[0].to(at::kDouble);
    };
    at::Tensor tokens = at::tensor(sequence.tokens, at::kLong);
    at::Tensor before = reference.decode(tokens).narrow(0, 0, kLength - 1);
    const at::Tensor nothing = at::zeros({1, config.hidden_size}, at::kDouble);
    for (int64_t ahead = 0;; ++ahead) {
      // The last row of `before` has no token behind it.
      const at::Tensor own = reference.predict(at::cat({before, nothing}), tokens, 0, false);
      const at::Tensor last = own.narrow(0, own.size(0) - 1, 1);
      const at::Tensor expected = at::matmul(last, reference.head().t())[0], found = logits_of(y);
      CHECK((found - expected).abs().max().item<double>() < 1e-4 * expected.abs().max().item<double>());
      if (ahead == kFurther) break;
      const auto token = static_cast<int32_t>(found.argmax().item<int64_t>());
      tokens = at::cat({tokens, at::tensor({int64_t{token}})});
      before = at::cat({before, last});
      y = predictor.further(followed, y, {{0, 0, token}}, ahead + 1);
    }
    model.transformer.end_decoding();
  }
}

TEST(no_token_and_no_log_prob_changes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const char* variant : {"llama", "deepseek_v3", "qwen3_moe", "qwen3_5"}) {
      const ModelConfig config = predicting(variant, 2);
      SmallModel model(config, {}, dtype);
      std::vector<RolloutRequest> requests = some(24);
      for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].sampling.temperature = i % 3 == 0 ? 0 : 0.5;
        if (i % 5 == 1) requests[i].prompt = requests[0].prompt;
        if (i % 6 == 2) requests[i].sampling.repetition_penalty = 1.2;
      }
      const Answers expected = run_of(model, requests, {}).answers;
      for (const int64_t tokens : {1, 4}) {
        const Run all = run_of(model, requests, drafting(tokens));
        CHECK(all.answers == expected && all.stats.drafted_tokens > 0 && all.stats.accepted_tokens > 0);
        RolloutOptions few = drafting(tokens);
        few.max_step_tokens = 12;
        few.max_sequences = 5;
        few.kv_cache_bytes = cache_of(config, dtype, few.max_sequences, 9);
        if (config.linear) few.state_slots = 7;
        const Run tight = run_of(model, requests, few);
        CHECK(tight.answers == expected);
        CHECK(tight.stats.preemptions > 0);
        if (config.linear) few.state_slots = 0;
        few.prefix_caching = false;
        CHECK(run_of(model, requests, few).answers == expected);
      }
      RolloutOptions eight;
      eight.quantization = ops::Quantization::kInt8;
      if (config.moe) continue;
      const Answers coded = run_of(model, requests, eight).answers;
      eight.drafts = drafting(3).drafts;
      CHECK(run_of(model, requests, eight).answers == coded);
    }
  }
}

TEST(pages_are_those_of_one_layer_more) {
  const ModelConfig config = predicting("llama");
  SmallModel model(config);
  const auto bytes_of_page = [&](const RolloutOptions& options) {
    const Rollout rollout(model.transformer, options);
    return rollout.stats().cache_bytes / rollout.stats().pages;
  };
  const int64_t page = KvCache::page_bytes(config, at::kFloat);
  CHECK(bytes_of_page({}) == page);
  CHECK(bytes_of_page(drafting(2)) == page / config.num_layers * (config.num_layers + 1));
}

TEST(many_sequences_are_followed_without_guesses) {
  SmallModel model(predicting("llama"));
  std::vector<RolloutRequest> requests;
  for (uint64_t i = 0; i < 3; ++i) {
    requests.push_back(request(i, prompt(20, static_cast<int64_t>(i)), 60));
    requests.back().sampling.temperature = 0;
  }
  RolloutOptions options = drafting(1);
  options.drafts.max_sequences = 2;
  CHECK(run_of(model, requests, options).stats.drafts == 0);
  // The last one is alone in the end.
  requests[0].sampling.max_new_tokens = requests[1].sampling.max_new_tokens = 5;
  CHECK(run_of(model, requests, options).stats.drafts > 0);
}

// One of four tokens must be right to be worth a row: a token alone costs a fourth of what four cost.
TEST(a_guess_is_drafted_as_far_as_it_has_paid) {
  SmallModel model(predicting("llama"));
  RolloutRequest r = request(1, prompt(20), 170);
  r.sampling.temperature = 0;
  RolloutOptions options = drafting(1);
  options.drafts.max_sequences = 4;
  const Run found = run_of(model, {r}, options);
  Tokens all = r.prompt;
  const Tokens& said = found.answers.at(1).tokens;
  all.insert(all.end(), said.begin(), said.end());
  const Tokens guesses = guesses_of(model, all);
  double right = 0, known = 0;
  int64_t drafts = 0, accepted = 0;
  for (size_t length = r.prompt.size() + 1; length + 1 < all.size();) {
    const bool drafted = (right + 1) / (known + 2) >= 0.25, taken = guesses[length] == all[length];
    known += 1;
    right += taken;
    if (known > 64) right /= 2, known /= 2;
    drafts += drafted;
    accepted += drafted && taken;
    length += drafted && taken ? 2 : 1;
  }
  CHECK(found.stats.drafts == drafts && found.stats.accepted_tokens == accepted && drafts < 100);
}

// Nothing follows its last row: others of the step are drafted as if it had never been there.
TEST(a_request_without_a_token_left_ends_alone) {
  SmallModel model(predicting("llama"));
  const RolloutRequest other = request(1, prompt(20), 30);
  RolloutRequest none = request(2, prompt(9), 4);
  for (int32_t token = 0; token < kVocabulary; ++token)
    none.sampling.logit_bias.emplace_back(token, -std::numeric_limits<float>::infinity());
  const Run alone = run_of(model, {other}, drafting(2)), both = run_of(model, {other, none}, drafting(2));
  CHECK(both.answers.at(1) == alone.answers.at(1) && both.answers.at(2).tokens.empty());
  CHECK(both.stats.drafts == alone.stats.drafts && both.stats.accepted_tokens == alone.stats.accepted_tokens);
}

TEST(a_model_without_the_layer_is_refused) {
  SmallModel model(long_model("llama"));
  CHECK_THROWS(Rollout(model.transformer, drafting(1)), "expected an engine that holds them (mtp)");
}

TEST_MAIN()
