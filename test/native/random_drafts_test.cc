#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "check.h"
#include "rollout_answers.h"

using namespace troupe;
using namespace troupe::test;

namespace {

// What a request has got, all of it.
struct Said {
  Tokens tokens;
  std::vector<float> log_probs, prompt_log_probs;
  std::vector<std::pair<int32_t, float>> top;
  std::vector<uint8_t> experts;
  Finish finish = Finish::kNone;
  bool needs_mask = false;

  void add(const RolloutOutput& output) {
    tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
    log_probs.insert(log_probs.end(), output.log_probs.begin(), output.log_probs.end());
    const std::vector<float>& of_prompt = output.prompt_log_probs;  // the first is NaN
    if (!of_prompt.empty()) prompt_log_probs.assign(of_prompt.begin() + 1, of_prompt.end());
    for (const auto& likely : output.top)
      for (const TokenLogProb& one : likely) top.emplace_back(one.token, one.log_prob);
    experts.insert(experts.end(), output.routed_experts.begin(), output.routed_experts.end());
    finish = output.finish;
    needs_mask = output.needs_mask;
  }
  // All of what `whole` has, or the first of it where it was aborted, perhaps within its prompt.
  bool begins(const Said& whole) const {
    const auto first = [](const auto& part, const auto& all) {
      return part.size() <= all.size() && std::equal(part.begin(), part.end(), all.begin());
    };
    if (finish != Finish::kAbort)
      return tokens == whole.tokens && log_probs == whole.log_probs && top == whole.top &&
             prompt_log_probs == whole.prompt_log_probs && experts == whole.experts && finish == whole.finish;
    return first(tokens, whole.tokens) && first(log_probs, whole.log_probs) && first(top, whole.top) &&
           first(experts, whole.experts) && (tokens.empty() || prompt_log_probs == whole.prompt_log_probs);
  }
};

// Random requests to a rollout that drafts, with aborts, other weights (of the same values) and preemption
// between steps, against one without drafts that has each request for itself.
class Play {
 public:
  Play(SmallModel& model, uint64_t seed) : model_(model), random_(seed) {}

  RolloutStats run(int64_t count, const RolloutOptions& options) {
    RolloutOptions plain;
    plain.routed_experts = options.routed_experts;
    plain.latent_cache = options.latent_cache;
    Rollout alone(model_.transformer, plain);
    model_.transformer.begin_decoding(options.form());
    for (int64_t i = 0; i < count; ++i) {
      requests_.push_back(draw(static_cast<uint64_t>(i)));
      alone.submit(requests_.back());
      drive(alone, expected_);
    }
    Rollout drafting(model_.transformer, options);
    size_t next = 0;
    while (next < requests_.size() || !live_.empty()) {
      while (next < requests_.size() && (live_.empty() || !chance(2))) {
        live_.insert(requests_[next].id);
        drafting.submit(requests_[next++]);
      }
      if (chance(12) && !live_.empty()) drafting.abort(*std::next(live_.begin(), below(live_.size())));
      if (chance(15)) {
        if (chance(2)) drafting.park(/*preempt=*/true);
        drafting.weights_changed();
      }
      if (chance(25)) CHECK(drafting.park(/*preempt=*/true));
      if (chance(3)) drafting.park(false);
      drafting.step();
      take(drafting, found_);
    }
    CHECK(found_.size() == expected_.size());
    for (const auto& [id, said] : found_) {
      CHECK(said.finish != Finish::kNone && said.begins(expected_.at(id)));
    }
    const RolloutStats stats = drafting.stats();
    CHECK(stats.pages_held == 0 && stats.slots_held == 0 && stats.running == 0 && stats.waiting == 0);
    model_.transformer.end_decoding();
    return stats;
  }

 private:
  using All = std::map<uint64_t, Said>;

  size_t below(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
  bool chance(size_t one_in) { return below(one_in) == 0; }

  RolloutRequest draw(uint64_t id) {
    if (!requests_.empty() && chance(2)) {  // another sample of it
      RolloutRequest r = requests_.back();
      r.id = id;
      if (!chance(3)) r.seed = below(4);
      return r;
    }
    RolloutRequest r = request(id, prompt(static_cast<int64_t>(1 + below(60)), below(3)), 1 + below(40));
    if (!requests_.empty() && chance(3)) {  // the next turn
      const RolloutRequest& last = requests_[below(requests_.size())];
      r.prompt = last.prompt;
      const Tokens& said = expected_.at(last.id).tokens;
      r.prompt.insert(r.prompt.end(), said.begin(), said.end());
      r.prompt.resize(std::min<size_t>(r.prompt.size(), 100));
      r.prompt.push_back(static_cast<int32_t>(below(kVocabulary)));
    }
    RequestSampling& s = r.sampling;
    r.priority = static_cast<double>(below(2));
    r.salt = chance(4) ? 1 : 0;
    r.seed = below(4);
    s.temperature = chance(2) ? 0 : 0.3 * static_cast<double>(below(4));
    if (chance(4)) s.top_k = 3;
    if (chance(4)) s.top_p = 0.7;
    if (chance(8)) s.min_p = 0.1;
    if (chance(8)) s.frequency_penalty = 0.5;
    if (chance(8)) s.bad_words = {{5}, {7, 9}};
    if (chance(4)) s.stop_token_ids = {11, 17, 30};
    if (chance(4)) s.top_log_probs = 3;
    s.prompt_log_probs = chance(5);
    s.constrained = chance(8);
    return r;
  }

  // The mask of a token follows from its place.
  void take(Rollout& rollout, All& all) {
    for (const RolloutOutput& output : rollout.take_outputs()) {
      Said& said = all[output.id];
      said.add(output);
      if (said.finish != Finish::kNone) live_.erase(output.id);
      const uint32_t word = said.tokens.size() % 3 == 0 ? 0xffffffff : 0x0f0ff0f0;
      if (said.needs_mask) rollout.set_mask(output.id, {word, word});
    }
  }

  void drive(Rollout& rollout, All& all) {
    take(rollout, all);
    while (rollout.step()) take(rollout, all);
    take(rollout, all);
  }

  SmallModel& model_;
  std::mt19937_64 random_;
  std::vector<RolloutRequest> requests_;
  All expected_, found_;
  std::set<uint64_t> live_;
};

// By looking up, or by the model's own layer.
void play(bool predicts, uint64_t seed, int64_t least_accepted) {
  int64_t accepted = 0, preempted = 0;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const char* variant : {"qwen3", "gemma3", "qwen3_moe", "gpt_oss", "latent", "qwen3_5", "qwen3_next",
                                "nemotron_h", "olmo_hybrid", "deepseek_v3"}) {
      ModelConfig config = long_model(variant);
      if (config.sliding_windows.size() > 0) config.sliding_windows[0] = 20;
      if (predicts) config.prediction = PredictionConfig{1, false};
      SmallModel model(config, {}, type);
      std::mt19937_64 random(++seed);
      const auto below = [&](uint64_t count) { return static_cast<int64_t>(random() % count); };
      RolloutOptions options;
      options.drafts.num_tokens = 1 + below(12);
      options.drafts.predicts = predicts;
      options.drafts.min_match = 1 + below(2);
      options.drafts.remembered_tokens = below(3) == 0 ? below(100) : 4096;
      options.drafts.max_sequences = below(3) == 0 ? 3 : 1000;
      options.max_sequences = 1 + below(12);
      options.max_step_tokens = below(2) == 0 ? 1 + below(30) : 256;
      options.chunked_prefill = below(3) > 0;
      options.prefix_caching = below(4) > 0;
      options.routed_experts = config.moe.has_value();
      options.latent_cache = config.family == "deepseek_v3";
      ModelConfig cached = rollout_config(options, config);
      cached.num_layers += predicts;
      if (config.linear) {
        cached.linear_layers.resize(static_cast<size_t>(cached.num_layers), false);
        options.state_slots = options.max_sequences + below(2 * options.max_sequences);
      }
      options.kv_cache_bytes = (5 + below(12)) * KvCache::page_bytes(cached, type) +
                               options.state_slots * StateCache::slot_bytes(config, type);
      const RolloutStats stats = Play(model, seed).run(40, options);
      accepted += stats.accepted_tokens;
      preempted += stats.preemptions;
    }
  }
  CHECK(accepted > least_accepted && preempted > 0);
}

}  // namespace

TEST(random_requests_say_what_each_of_them_says_alone) {
  play(/*predicts=*/false, 0, 500);
}

TEST(random_requests_say_it_where_the_layer_for_further_tokens_drafts) {
  play(/*predicts=*/true, 100, 20);
}

TEST_MAIN()
