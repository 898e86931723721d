#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "check.h"
#include "generation.h"
#include "rollout/random.h"
#include "rollout/sampler.h"
#include "toy_decoder.h"

using namespace troupe;
using troupe::test::GenerateResult;
using troupe::test::PromptBatch;
using troupe::test::SamplingOptions;
using troupe::test::toy_config;
using troupe::test::ToyDecoder;

namespace {

using Tokens = std::vector<int32_t>;

struct Sample {
  Tokens tokens;
  std::vector<float> log_probs;
  bool operator==(const Sample&) const = default;
};

std::vector<Tokens> toy_prompts(int64_t count, int64_t longest = 70) {
  std::vector<Tokens> prompts;
  for (int64_t i = 0; i < count; ++i) {
    Tokens prompt(static_cast<size_t>(1 + (i * 29) % longest));
    for (size_t t = 0; t < prompt.size(); ++t) {
      prompt[t] = static_cast<int32_t>((static_cast<size_t>(i) * 31 + t * 17) % 97);
    }
    prompts.push_back(prompt);
  }
  return prompts;
}

PromptBatch batch_of(const std::vector<Tokens>& prompts, int64_t n, std::vector<uint64_t> seeds) {
  Tokens tokens, offsets = {0};
  for (const Tokens& prompt : prompts) {
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    offsets.push_back(static_cast<int32_t>(tokens.size()));
  }
  return {at::tensor(tokens, at::kInt), at::tensor(offsets, at::kInt), n, std::move(seeds)};
}

std::vector<uint64_t> seeds_from(uint64_t first, int64_t count) {
  std::vector<uint64_t> seeds(static_cast<size_t>(count));
  std::iota(seeds.begin(), seeds.end(), first);
  return seeds;
}

std::vector<Sample> samples_of(const GenerateResult& result) {
  std::vector<Sample> samples;
  const int32_t* offsets = result.offsets.const_data_ptr<int32_t>();
  const int32_t* tokens = result.tokens.const_data_ptr<int32_t>();
  const float* log_probs = result.log_probs.const_data_ptr<float>();
  for (int64_t i = 0; i + 1 < result.offsets.size(0); ++i) {
    samples.push_back({{tokens + offsets[i], tokens + offsets[i + 1]},
                       {log_probs + offsets[i], log_probs + offsets[i + 1]}});
  }
  return samples;
}

std::vector<Sample> run(ToyDecoder& decoder, const PromptBatch& batch, const SamplingOptions& options,
                        const RolloutOptions& limits = {}) {
  return samples_of(test::generate(decoder, batch, options, limits));
}

constexpr int64_t kPageBytes = 2 * 2 * 2 * 10 * 32 * 4;  // of toy_config()

SamplingOptions sampling(int64_t max_new_tokens, double temperature) {
  SamplingOptions options;
  options.max_new_tokens = max_new_tokens;
  options.temperature = temperature;
  return options;
}

// log softmax(logits / temperature) in double.
std::vector<double> naive_log_softmax(const at::Tensor& logits, double temperature) {
  const at::Tensor result = at::log_softmax(logits.to(at::kDouble) / temperature, -1).contiguous();
  return {result.const_data_ptr<double>(), result.const_data_ptr<double>() + result.numel()};
}

// Every token of a sample is what the whole forward pass over the sequence so far gives.
void check_against_recompute(ToyDecoder& decoder, const Tokens& prompt, uint64_t seed,
                             const SamplingOptions& options, const Sample& sample) {
  Tokens sequence = prompt;
  for (size_t t = 0; t < sample.tokens.size(); ++t) {
    const at::Tensor logits = decoder.next_logits(sequence);
    const Sampled expected =
        sample_token(logits.const_data_ptr<float>(), logits.numel(),
                     {options.temperature, options.top_k, options.top_p}, uniform(seed, t));
    CHECK(sample.tokens[t] == expected.token);
    const double temperature = options.temperature == 0 ? 1 : options.temperature;
    const auto log_probs = naive_log_softmax(logits, temperature);
    CHECK_CLOSE(sample.log_probs[t], log_probs[static_cast<size_t>(sample.tokens[t])], 3e-5);
    sequence.push_back(sample.tokens[t]);
  }
}

}  // namespace

TEST(philox_known_answers) {
  // Of the Random123 distribution (kat_vectors).
  const PhiloxBlock zeros = philox4x32_10({{0, 0, 0, 0}}, 0, 0);
  CHECK(zeros.word[0] == 0x6627e8d5 && zeros.word[1] == 0xe169c58d);
  CHECK(zeros.word[2] == 0xbc57ac4c && zeros.word[3] == 0x9b00dbd8);
  const PhiloxBlock ones = philox4x32_10({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u);
  CHECK(ones.word[0] == 0x408f276d && ones.word[1] == 0x41c83b0e);
  CHECK(ones.word[2] == 0xa20bc7c6 && ones.word[3] == 0x6d5451fd);
}

TEST(greedy_equals_recompute) {
  ToyDecoder decoder;
  const auto prompts = toy_prompts(5);
  const auto options = sampling(45, 0);
  const auto samples = run(decoder, batch_of(prompts, 1, seeds_from(0, 5)), options);
  for (size_t i = 0; i < prompts.size(); ++i) {
    CHECK(samples[i].tokens.size() == 45);
    check_against_recompute(decoder, prompts[i], i, options, samples[i]);
  }
}

TEST(sampling_equals_recompute) {
  ToyDecoder decoder;
  const auto prompts = toy_prompts(3);
  auto options = sampling(40, 0.8);
  options.top_k = 20;
  options.top_p = 0.9;
  const auto samples = run(decoder, batch_of(prompts, 2, seeds_from(100, 6)), options);
  for (size_t i = 0; i < samples.size(); ++i) {
    check_against_recompute(decoder, prompts[i / 2], 100 + i, options, samples[i]);
  }
}

TEST(window_and_softcap_equal_recompute) {
  ModelConfig config = toy_config();
  config.sliding_windows = {9, 0};
  config.attention_softcap = 1.5;
  ToyDecoder one_layer(config);
  config.sliding_windows = {37, 64};
  ToyDecoder both_layers(config);
  for (ToyDecoder* decoder : {&one_layer, &both_layers}) {
    const auto prompts = toy_prompts(4);
    const auto options = sampling(50, 1);
    const auto samples = run(*decoder, batch_of(prompts, 1, seeds_from(0, 4)), options);
    for (size_t i = 0; i < samples.size(); ++i)
      check_against_recompute(*decoder, prompts[i], i, options, samples[i]);
  }
}

TEST(samples_do_not_depend_on_the_batch) {
  ToyDecoder decoder;
  const auto prompts = toy_prompts(40);
  auto options = sampling(40, 1);
  options.stop_token_ids = {3, 50, 51};
  const auto seeds = seeds_from(500, 40);
  const auto together = run(decoder, batch_of(prompts, 1, seeds), options);

  for (const size_t i : {size_t{0}, size_t{7}, size_t{39}}) {
    CHECK(run(decoder, batch_of({prompts[i]}, 1, {seeds[i]}), options)[0] == together[i]);
  }
  const std::vector<Tokens> reversed(prompts.rbegin(), prompts.rend());
  auto backwards = run(decoder, batch_of(reversed, 1, {seeds.rbegin(), seeds.rend()}), options);
  std::reverse(backwards.begin(), backwards.end());
  CHECK(backwards == together);

  // Few places, a cache for one sequence only, tiny groups of prompts and of logits.
  decoder.largest_step = 0;
  CHECK(
      run(decoder, batch_of(prompts, 1, seeds), options,
          {.max_sequences = 3, .max_step_tokens = 7, .kv_cache_bytes = 4 * kPageBytes, .logits_bytes = 1}) ==
      together);
  CHECK(decoder.largest_step <= 8);  // 7, in tiles of 4: prompts of up to 70 tokens are cut
  CHECK(run(decoder, batch_of(prompts, 1, seeds), options,
            {.max_sequences = 5, .max_step_tokens = 100, .chunked_prefill = false}) == together);
  CHECK(decoder.largest_step >= 70);
}

TEST(samples_of_a_prompt_share_it) {
  ToyDecoder decoder;
  const auto prompts = toy_prompts(6);
  const auto options = sampling(35, 1.3);
  const auto seeds = seeds_from(9, 24);
  const auto grouped = run(decoder, batch_of(prompts, 4, seeds), options, {.max_sequences = 7});
  int64_t prompt_rows = 0;
  for (const Tokens& prompt : prompts) prompt_rows += static_cast<int64_t>(prompt.size());
  // Every prompt once, but for a last page (and padding) where its samples do not begin together.
  CHECK(decoder.rows < prompt_rows + 6 * 32 + 24 * 35 + 4 * 200);
  std::vector<Tokens> repeated;
  for (size_t i = 0; i < 24; ++i) repeated.push_back(prompts[i / 4]);
  CHECK(run(decoder, batch_of(repeated, 1, seeds), options) == grouped);
  CHECK(grouped[0].tokens != grouped[1].tokens);
}

TEST(results_do_not_depend_on_threads) {
  ModelConfig config = toy_config();
  config.vocab_size = 1000;
  ToyDecoder decoder(config);
  const auto batch = batch_of(toy_prompts(12), 2, seeds_from(1, 24));
  const auto options = sampling(30, 1);
  const int before = at::get_num_threads();
  std::vector<std::vector<Sample>> results;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    results.push_back(run(decoder, batch, options));
  }
  at::set_num_threads(before);
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST(stops_and_lengths) {
  ToyDecoder decoder;
  const auto prompts = toy_prompts(20);
  auto options = sampling(25, 1);
  const auto seeds = seeds_from(0, 20);
  const auto free = run(decoder, batch_of(prompts, 1, seeds), options);
  options.stop_token_ids = {11, 60, free[4].tokens[6]};
  const auto stopped = run(decoder, batch_of(prompts, 1, seeds), options);
  for (size_t i = 0; i < free.size(); ++i) {
    CHECK(free[i].tokens.size() == 25);
    Tokens expected = free[i].tokens;
    const auto end = std::find_first_of(expected.begin(), expected.end(), options.stop_token_ids.begin(),
                                        options.stop_token_ids.end());
    if (end != expected.end()) expected.erase(end + 1, expected.end());
    CHECK(stopped[i].tokens == expected);
    CHECK(stopped[i].log_probs.size() == expected.size());
  }
  CHECK(stopped[4].tokens.size() <= 7);
  CHECK(run(decoder, batch_of(prompts, 1, seeds), sampling(1, 1))[3].tokens.size() == 1);
  CHECK(run(decoder, batch_of({}, 3, {}), options).empty());
}

TEST(bad_input) {
  ToyDecoder decoder;
  const auto attempt = [&](const Tokens& prompt, const SamplingOptions& options) {
    run(decoder, batch_of({{4}, prompt}, 1, {1, 2}), options);
  };
  CHECK_THROWS(attempt({}, sampling(5, 1)), "the prompt is empty");
  CHECK_THROWS(attempt({4, 97}, sampling(5, 1)), "token id 97 at position 1");
  CHECK_THROWS(attempt({-1}, sampling(5, 1)), "token id -1");
  CHECK_THROWS(attempt({1}, sampling(0, 1)), "max_new_tokens >= 1");
  CHECK_THROWS(attempt({1}, sampling(5, -0.1)), "temperature >= 0");
  CHECK_THROWS(attempt({1}, sampling(5, std::nan(""))), "temperature >= 0");
  for (const double top_p : {0.0, 1.5, std::nan("")}) {
    auto options = sampling(5, 1);
    options.top_p = top_p;
    CHECK_THROWS(attempt({1}, options), "0 < top_p <= 1");
  }
  auto options = sampling(5, 1);
  options.top_k = -1;
  CHECK_THROWS(attempt({1}, options), "top_k >= 0");
  decoder.head()[13].fill_(std::nan(""));
  CHECK_THROWS(attempt({1}, sampling(5, 1)),
               "sample 0: [rollout] expected finite logits but response token 0");
}

TEST_MAIN()
