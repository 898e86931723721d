// Rollouts that keep the latents of multi-head latent attention.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bfloat16_ways.h"
#include "check.h"
#include "rollout_requests.h"

using namespace troupe;
using namespace troupe::test;

namespace {

const std::vector<std::string> kVariants = {"deepseek_v3", "latent"};

RolloutOptions latents(RolloutOptions options = {}) {
  options.latent_cache = true;
  return options;
}

LoraOptions adapters_of(const ModelConfig& config) {
  LoraOptions lora{4, 2.5, {}};
  const LatentConfig& latent = *config.latent;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".attn.";
    lora.sites.push_back({prefix + "q.q_proj", prefix + "q.weight", 0,
                          config.num_heads * (latent.still_dim + latent.rotary_dim)});
    lora.sites.push_back({prefix + "kv_b.kv_b_proj", prefix + "kv_b.weight", 0,
                          config.num_heads * (latent.still_dim + latent.value_dim)});
  }
  return lora;
}

// Log-probs of a prompt's tokens and of a greedy response, in the two forms: how far they are from each
// other.
double distance(SmallModel& model, const RolloutOptions& options = {}) {
  RolloutRequest r = request(1, prompt(70), 1);
  r.sampling.prompt_log_probs = true;
  const Answer over_heads = run(model, {r}, options).at(1),
               over_latents = run(model, {r}, latents(options)).at(1);
  double most = 0;
  for (size_t i = 1; i < over_heads.prompt_log_probs.size(); ++i)
    most =
        std::max<double>(most, std::abs(over_heads.prompt_log_probs[i] - over_latents.prompt_log_probs[i]));
  CHECK(over_heads.prompt_log_probs.size() == 70 && std::isfinite(most));
  return most;
}

}  // namespace

// Sums are taken in another order, and of other numbers: the difference is rounding, and it is there.
TEST(log_probs_over_latents_are_those_over_heads) {
  for (const std::string& variant : kVariants) {
    SmallModel model(long_model(variant));
    const double far = distance(model);
    std::printf("  %s: %.2g\n", variant.c_str(), far);
    CHECK(far > 0 && far < 3e-5);
  }
}

TEST(adapters_take_part_in_both_halves_of_the_matrix) {
  for (const std::string& variant : kVariants) {
    const ModelConfig config = long_model(variant);
    SmallModel model(config, adapters_of(config));
    const double far = distance(model);
    CHECK(far > 0 && far < 3e-5);
    // They matter: without them the answers are others.
    RolloutRequest r = request(1, prompt(70), 1);
    r.sampling.prompt_log_probs = true;
    const Answer with = run(model, {r}, latents()).at(1);
    model.transformer.enable_adapters(false);
    const Answer without = run(model, {r}, latents()).at(1);
    CHECK(with.prompt_log_probs.back() != without.prompt_log_probs.back());
    CHECK(distance(model) < 3e-5);
    model.transformer.enable_adapters(true);
  }
}

TEST(in_bfloat16_they_are_as_near_as_its_rounding) {
  for_each_bfloat16_gemm([] {
    SmallModel model(long_model("latent"), std::nullopt, at::kBFloat16);
    const double far = distance(model);
    std::printf("  %.2g\n", far);
    CHECK(far > 0 && far < 0.15);
  });
}

TEST(the_same_tokens_alone_in_a_batch_in_chunks_and_with_preemption) {
  for (const std::string& variant : kVariants) {
    SmallModel model(long_model(variant));
    const std::vector<RolloutRequest> requests = mixed(24);
    const std::map<uint64_t, Answer> all = run(model, requests, latents());
    for (const uint64_t i : {0, 7, 22}) CHECK(same(run(model, {requests[i]}, latents()).at(i), all.at(i)));
    CHECK(all_same(run(model, requests, latents({.max_step_tokens = 16})), all));
    CHECK(all_same(run(model, requests, latents({.prefix_caching = false})), all));
    const int64_t page = KvCache::page_bytes(over_latents(model.config), at::kFloat);
    model.transformer.begin_decoding(latents().form());
    Rollout tight(model.transformer, latents({.kv_cache_bytes = 12 * page}));
    CHECK(all_same(run(tight, requests), all));
    CHECK(tight.stats().preemptions > 0 && tight.stats().pages_held == 0);
    model.transformer.end_decoding();
  }
}

TEST(a_page_holds_the_latents_alone) {
  const ModelConfig config = long_model("deepseek_v3");
  const LatentConfig& latent = *config.latent;
  CHECK(KvCache::page_bytes(over_latents(config), at::kFloat) ==
        config.num_layers * (latent.key_rank + latent.rotary_dim) * kPagePositions * 4);
  SmallModel model(config);
  model.transformer.begin_decoding(latents().form());
  const int64_t bytes = 10 * KvCache::page_bytes(config, at::kFloat);
  const Rollout over_heads(model.transformer, {.max_positions = 200, .kv_cache_bytes = bytes});
  const Rollout over_them(model.transformer, latents({.max_positions = 200, .kv_cache_bytes = bytes}));
  CHECK(over_heads.stats().pages == 10);
  CHECK(over_them.stats().pages == bytes / KvCache::page_bytes(over_latents(config), at::kFloat));
}

TEST(a_cache_too_small_for_keys_and_values_says_that_latents_may_fit) {
  SmallModel model(long_model("deepseek_v3"));
  const RolloutOptions small{.kv_cache_bytes = KvCache::page_bytes(over_latents(model.config), at::kFloat)};
  CHECK_THROWS(Rollout(model.transformer, small), "or keep latents in their place (latent_cache)");
  CHECK(Rollout(model.transformer, latents(small)).stats().pages == 1);
}

TEST(a_model_without_latents_refuses) {
  SmallModel model(long_model("qwen3"));
  CHECK_THROWS(Rollout(model.transformer, latents()), "latent_cache keeps the latents");
}

TEST_MAIN()
