#include "rollout/sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "check.h"
#include "rollout/random.h"

using namespace troupe;

namespace {

using Tokens = std::vector<int32_t>;

// log softmax(logits / temperature) in double.
std::vector<double> naive_log_softmax(const at::Tensor& logits, double temperature) {
  const at::Tensor result = at::log_softmax(logits.to(at::kDouble) / temperature, -1).contiguous();
  return {result.const_data_ptr<double>(), result.const_data_ptr<double>() + result.numel()};
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

TEST_MAIN()
