#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "check.h"
#include "core/error.h"
#include "rollout/generator.h"
#include "rollout/random.h"
#include "rollout/sampler.h"
#include "toy_decoder.h"

using namespace troupe;
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
                        const GenerateLimits& limits = {}) {
  return samples_of(generate(
      decoder, batch, options, [] {}, limits));
}

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

std::vector<float> random_logits(int64_t vocab, uint64_t seed, double scale, bool ties) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (size_t i = 0; i < logits.size(); ++i) {
    const double x = (uniform(seed, 2 * i) + uniform(seed, 2 * i + 1) - 1) * scale;
    logits[i] = static_cast<float>(ties ? std::round(x) : x);
  }
  return logits;
}

// The kept set by a full sort.
Tokens naive_kept(const std::vector<float>& logits, const SamplerOptions& options) {
  Tokens order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) {
    order.resize(static_cast<size_t>(options.top_k));
  }
  if (options.top_p >= 1) return order;
  std::vector<double> weights;
  double total = 0;
  for (const int32_t token : order) {
    const double z = logits[static_cast<size_t>(token)] - logits[static_cast<size_t>(order[0])];
    total += weights.emplace_back(std::exp(z / options.temperature));
  }
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    sum += weights[i];
    if (sum >= options.top_p * total) {
      order.resize(i + 1);
      break;
    }
  }
  return order;
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
  CHECK(run(decoder, batch_of(prompts, 1, seeds), options,
            {.max_sequences = 3, .kv_cache_bytes = 1, .prefill_tokens = 1, .logits_bytes = 1}) == together);
  CHECK(run(decoder, batch_of(prompts, 1, seeds), options, {.max_sequences = 5, .prefill_tokens = 100}) ==
        together);
}

TEST(samples_of_a_prompt_share_it) {
  ToyDecoder decoder;
  const auto prompts = toy_prompts(6);
  const auto options = sampling(35, 1.3);
  const auto seeds = seeds_from(9, 24);
  const auto grouped = run(decoder, batch_of(prompts, 4, seeds), options, {.max_sequences = 7});
  CHECK(decoder.prefills == 1);
  CHECK(decoder.largest_step == 8);  // 7 places in tiles of 4
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
  CHECK(samples_of(generate(decoder, batch_of({}, 3, {}), options, [] {})).empty());
}

TEST(abort_is_asked_once_per_step) {
  ToyDecoder decoder;
  int64_t calls = 0;
  const auto batch = batch_of(toy_prompts(2), 1, {1, 2});
  generate(decoder, batch, sampling(12, 1), [&] { ++calls; });
  CHECK(calls == 12);
  const auto abort = [&] { fail(ErrorCode::kAborted, "asked to stop"); };
  CHECK_THROWS(generate(decoder, batch, sampling(12, 1), abort), "asked to stop");
}

TEST(kept_sets_equal_a_full_sort) {
  for (const int64_t vocab : {1, 5, 64, 97, 1000, 20001}) {
    for (const bool ties : {false, true}) {
      for (const double scale : {0.0, 3.0, 30.0}) {
        const auto logits = random_logits(vocab, static_cast<uint64_t>(vocab), scale, ties);
        for (const int64_t top_k : {0, 1, 3, 50, 700}) {
          for (const double top_p : {1e-6, 0.1234, 0.9, 0.9999, 1.0}) {
            const SamplerOptions options{.temperature = 0.7, .top_k = top_k, .top_p = top_p};
            const bool equal = kept_tokens(logits.data(), vocab, options) == naive_kept(logits, options);
            CHECK(equal);
            if (!equal) {
              std::printf("  vocab %ld ties %d scale %g top_k %ld top_p %g\n", static_cast<long>(vocab), ties,
                          scale, static_cast<long>(top_k), top_p);
            }
          }
        }
      }
    }
  }
}

TEST(samples_follow_the_distribution) {
  const int64_t vocab = 150;
  const auto logits = random_logits(vocab, 3, 3, false);
  for (const auto& options :
       {SamplerOptions{.temperature = 1.5}, SamplerOptions{.temperature = 1, .top_k = 30},
        SamplerOptions{.temperature = 0.9, .top_k = 0, .top_p = 0.8}}) {
    const Tokens kept = kept_tokens(logits.data(), vocab, options);
    double total = 0;
    std::vector<double> expected(static_cast<size_t>(vocab)), seen(static_cast<size_t>(vocab));
    for (const int32_t token : kept) {
      total += expected[static_cast<size_t>(token)] =
          std::exp(logits[static_cast<size_t>(token)] / options.temperature);
    }
    const int draws = 60000;
    for (int i = 0; i < draws; ++i) {
      ++seen[static_cast<size_t>(
          sample_token(logits.data(), vocab, options, uniform(17, static_cast<uint64_t>(i))).token)];
    }
    double chi_square = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] == 0) {
        CHECK(seen[i] == 0);
        continue;
      }
      const double mean = draws * expected[i] / total;
      chi_square += (seen[i] - mean) * (seen[i] - mean) / mean;
    }
    const double freedom = static_cast<double>(kept.size()) - 1;
    CHECK(std::abs(chi_square - freedom) < 4 * std::sqrt(2 * freedom));
  }
}

TEST(inverse_cdf_edges) {
  const float infinity = std::numeric_limits<float>::infinity();
  const double almost_one = 1 - 0x1p-53;
  std::vector<float> logits(130, -infinity);
  logits[5] = 1;
  logits[100] = 1;
  CHECK(sample_token(logits.data(), 130, {}, 0).token == 5);
  CHECK(sample_token(logits.data(), 130, {}, 0.49).token == 5);
  CHECK(sample_token(logits.data(), 130, {}, 0.51).token == 100);
  CHECK(sample_token(logits.data(), 130, {}, almost_one).token == 100);
  CHECK(sample_token(logits.data(), 130, {.temperature = 1, .top_k = 1}, almost_one).token == 5);
  CHECK(sample_token(logits.data(), 130, {.temperature = 0}, almost_one).token == 5);
  CHECK(sample_token(logits.data(), 130, {.temperature = 1e-300}, 0.9).token == 100);
  CHECK_CLOSE(sample_token(logits.data(), 130, {}, 0.2).log_prob, -std::log(2.0), 1e-7);
  for (const float bad : {infinity, std::numeric_limits<float>::quiet_NaN()}) {
    auto broken = logits;
    broken[129] = bad;
    CHECK(!sample_token(broken.data(), 130, {}, 0.5).finite);
    CHECK(!sample_token(broken.data(), 130, {.temperature = 0}, 0.5).finite);
  }
  const std::vector<float> nothing(130, -infinity);
  CHECK(!sample_token(nothing.data(), 130, {}, 0.5).finite);
}

TEST(log_probs_of_a_large_vocabulary) {
  const int64_t vocab = 50257;
  for (const double temperature : {0.0, 0.3, 1.0, 2.0}) {
    const auto logits = random_logits(vocab, 8, 25, false);
    const auto log_probs = naive_log_softmax(at::tensor(logits), temperature == 0 ? 1 : temperature);
    for (uint64_t i = 0; i < 20; ++i) {
      const Sampled sampled = sample_token(logits.data(), vocab, {.temperature = temperature}, uniform(1, i));
      CHECK_CLOSE(sampled.log_prob, log_probs[static_cast<size_t>(sampled.token)], 2e-6);
    }
  }
}

TEST(bad_input) {
  ToyDecoder decoder;
  const auto prompts = toy_prompts(3);
  const auto good = batch_of(prompts, 1, {1, 2, 3});
  const auto attempt = [&](const PromptBatch& batch, const SamplingOptions& options) {
    generate(decoder, batch, options, [] {});
  };
  CHECK_THROWS(attempt(batch_of({{1}, {}}, 1, {1, 2}), sampling(5, 1)), "prompt 1 is empty");
  CHECK_THROWS(attempt(batch_of({{1}, {4, 97}}, 1, {1, 2}), sampling(5, 1)),
               "prompt 1 has token id 97 at position 1");
  CHECK_THROWS(attempt(batch_of({{-1}}, 1, {1}), sampling(5, 1)), "prompt 0 has token id -1");
  CHECK_THROWS(attempt(batch_of(prompts, 2, {1, 2, 3}), sampling(5, 1)),
               "one seed per sample, 3 prompts x 2 = 6");
  CHECK_THROWS(attempt(batch_of(prompts, 0, {}), sampling(5, 1)), "n >= 1");
  CHECK_THROWS(attempt(good, sampling(0, 1)), "max_new_tokens >= 1");
  CHECK_THROWS(attempt(good, sampling(5, -0.1)), "temperature >= 0");
  CHECK_THROWS(attempt(good, sampling(5, std::nan(""))), "temperature >= 0");
  CHECK_THROWS(attempt(good, sampling(271, 1)),
               "prompt 1 has 30 tokens; with max_new_tokens 271 that is 301");
  for (const double top_p : {0.0, 1.5, std::nan("")}) {
    auto options = sampling(5, 1);
    options.top_p = top_p;
    CHECK_THROWS(attempt(good, options), "0 < top_p <= 1");
  }
  auto options = sampling(5, 1);
  options.top_k = -1;
  CHECK_THROWS(attempt(good, options), "top_k >= 0");
  decoder.head()[13].fill_(std::nan(""));
  CHECK_THROWS(attempt(good, sampling(5, 1)), "prompt 0, sample 0, response token 0");
}

TEST_MAIN()
