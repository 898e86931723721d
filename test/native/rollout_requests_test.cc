// Tokens of requests, whatever else runs.
#include "rollout_requests.h"

#include <ATen/ATen.h>

#include "check.h"
#include "forwarding_decoder.h"
#include "kernels/gemm.h"

using namespace troupe;
using namespace troupe::test;

TEST(the_same_tokens_whatever_else_runs) {
  for (const char* variant :
       {"qwen2",      "qwen3",       "gpt2",        "gemma2",      "gemma3",        "smollm3",  "qwen3_moe",
        "glm4_moe",   "deepseek_v3", "deepseek_v2", "gpt_oss",     "latent",        "qwen3_5",  "qwen3_next",
        "mamba2",     "nemotron_h",  "olmo3",       "olmo_hybrid", "lfm2",          "lfm2_moe", "granite",
        "granitemoe", "glm4",        "gemma4",      "gemma4_moe",  "gemma4_shared", "afmoe",    "apertus"}) {
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

// Of a prompt the layers behind the last keys compute the row alone from which a token is sampled, and
// nothing of a chunk without one.
TEST(layers_that_share_keys_compute_wanted_rows_alone) {
  struct Counter final : ForwardingDecoder {
    using ForwardingDecoder::ForwardingDecoder;
    std::vector<int64_t> inputs, outputs;  // rows by layer
    void attention_inputs(int64_t layer, const at::Tensor& x, const at::Tensor& positions,
                          const at::Tensor& qkv) override {
      inputs[static_cast<size_t>(layer)] += x.size(0);
      ForwardingDecoder::attention_inputs(layer, x, positions, qkv);
    }
    void block_output(int64_t layer, const at::Tensor& x, const at::Tensor& attn,
                      const at::Tensor& layer_inputs, const at::Tensor& out) override {
      outputs[static_cast<size_t>(layer)] += x.size(0);
      ForwardingDecoder::block_output(layer, x, attn, layer_inputs, out);
    }
  };
  SmallModel model(long_model("gemma4_shared"));
  const auto layers = static_cast<size_t>(model.config.num_layers);
  const auto last = layers - static_cast<size_t>(model.config.shared_kv_layers) - 1;
  model.transformer.begin_decoding();
  const int64_t tile = model.transformer.decode_row_tile();
  Counter counter(model.transformer);
  counter.inputs = counter.outputs = std::vector<int64_t>(layers);
  Rollout rollout(counter, {.max_step_tokens = 32});
  run(rollout, {request(0, prompt(96), 1)});
  for (size_t layer = 0; layer < layers; ++layer) {
    CHECK(counter.inputs[layer] == (layer <= last ? 96 : tile));
    CHECK(counter.outputs[layer] == (layer < last ? 96 : tile));
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
  for (const char* variant : {"qwen2", "qwen3", "gpt2", "gemma2", "gemma3", "smollm3", "qwen3_5", "olmo3",
                              "granite", "glm4", "gemma4", "gemma4_shared"}) {
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

// Tables of angles grow with the longest of all that a step has, wherever it comes.
TEST(a_long_prompt_before_a_short_one_has_its_own_positions) {
  ModelConfig config = small("qwen3");
  config.max_positions = 2400;
  const std::vector<RolloutRequest> both{request(0, prompt(2300), 3), request(1, prompt(5, 1), 3)};
  SmallModel together(config), apart(config);
  const auto answers = run(together, both);
  for (const RolloutRequest& r : both) CHECK(same(run(apart, {r}).at(r.id), answers.at(r.id)));
}

TEST(versions_go_with_tokens) {
  SmallModel model(long_model("qwen3"));
  model.transformer.begin_decoding();
  for (const bool preempts : {false, true}) {
    Rollout rollout(model.transformer, {});
    std::map<uint64_t, Answer> answers;
    for (uint64_t i = 0; i < 6; ++i) rollout.submit(request(i, prompt(40, static_cast<int64_t>(i)), 30));
    for (int64_t version = 1; version <= 100; ++version) {
      rollout.set_version(version);
      if (preempts) CHECK(rollout.park(/*preempt=*/true));
      rollout.weights_changed();
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
  CHECK_THROWS(rollout.submit(request(0, {4}, 20, INFINITY)), "temperature >= 0 (0 = greedy) but got inf");
  RolloutRequest unfit = request(0, {4}, 20);
  unfit.sampling.repetition_penalty = 0;
  CHECK_THROWS(rollout.submit(unfit), "repetition_penalty > 0 (1 = off) but got 0");
  CHECK_THROWS(Rollout(model.transformer, {.kv_cache_bytes = 5}), "less than one page");
  CHECK(run(rollout, {request(0, prompt(77), 20)}).at(0).tokens.size() == 20);
  CHECK(rollout.park(false) && rollout.stats().pages_held == 0);
  CHECK(run(rollout, {request(0, prompt(77), 20)}).at(0).tokens.size() == 20);
}

TEST_MAIN()
