#include "rollout/sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "check.h"
#include "kernels/device_ops.h"
#include "kernels/logit_blocks.h"
#include "rollout/batch_sampler.h"
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

// [rows, vocab]
at::Tensor random_rows(int64_t rows, int64_t vocab, double scale, bool ties) {
  std::vector<at::Tensor> all;
  for (int64_t r = 0; r < rows; ++r)
    all.push_back(at::tensor(random_logits(vocab, static_cast<uint64_t>(r + 1), scale, ties)));
  return at::stack(all);
}

std::vector<double> uniforms_of(int64_t rows) {
  std::vector<double> uniforms;
  for (int64_t r = 0; r < rows; ++r) uniforms.push_back(uniform(99, static_cast<uint64_t>(r)));
  return uniforms;
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

TEST(rows_by_blocks_equal_whole_rows) {
  const int64_t rows = 9;
  const std::vector<double> uniforms = uniforms_of(rows);
  for (const int64_t vocab : {1, 63, 64, 65, 1000, 5003}) {
    for (const double scale : {0.0, 3.0, 30.0}) {
      const at::Tensor logits = random_rows(rows, vocab, scale, scale == 30.0);
      for (const double temperature : {0.0, 0.7, 1.3}) {
        for (const int64_t top_k : {0, 1, 40, 700}) {
          for (const double top_p : {0.1, 0.9, 0.9999, 1.0}) {
            const SamplerOptions options{.temperature = temperature, .top_k = top_k, .top_p = top_p};
            const auto by_blocks = sample_rows_by_blocks(logits, options, uniforms);
            const auto whole = sample_rows(logits, options, uniforms);
            for (size_t r = 0; r < uniforms.size(); ++r) {
              CHECK(by_blocks[r].finite && whole[r].finite);
              CHECK(by_blocks[r].token == whole[r].token);
              CHECK(by_blocks[r].log_prob == whole[r].log_prob);
            }
          }
        }
      }
    }
  }
}

TEST(rows_by_blocks_name_rows_that_are_no_distribution) {
  const at::Tensor logits = random_rows(4, 300, 3, false);
  logits[1][299] = std::numeric_limits<float>::quiet_NaN();
  logits[2][70] = std::numeric_limits<float>::infinity();
  logits[3].fill_(-std::numeric_limits<float>::infinity());
  for (const double temperature : {0.0, 1.0}) {
    for (const int64_t top_k : {0, 5}) {
      const SamplerOptions options{.temperature = temperature, .top_k = top_k};
      const auto sampled = sample_rows_by_blocks(logits, options, uniforms_of(4));
      const Sampled alone = sample_token(logits.const_data_ptr<float>(), 300, options, uniforms_of(1)[0]);
      CHECK(sampled[0].finite && sampled[0].token == alone.token);
      for (size_t r = 1; r < 4; ++r) CHECK(!sampled[r].finite);
    }
  }
}

TEST(only_blocks_that_hold_candidates_are_read) {
  const int64_t vocab = 6400;
  const auto logits = random_logits(vocab, 4, 10, false);
  std::vector<float> maxima;
  std::vector<double> sums;
  for (int64_t begin = 0; begin < vocab; begin += 64) {
    maxima.push_back(*std::max_element(logits.begin() + begin, logits.begin() + begin + 64));
    sums.push_back(1);
  }
  const LogitRow row{vocab, maxima.data(), sums.data(), std::vector<const float*>(maxima.size())};
  CHECK(blocks_to_read(row, {}, 0.505) == std::vector<int64_t>{50});
  CHECK(blocks_to_read(row, {.temperature = 0}, 0.5).size() == 1);
  CHECK(blocks_to_read(row, {.temperature = 1, .top_k = 7}, 0.5).size() == 7);
  CHECK(blocks_to_read(row, {.temperature = 1, .top_k = 0, .top_p = 0.9}, 0.5).size() == 64);
  CHECK(!sample_row(row, {.temperature = 1, .top_k = 7}, 0.5).has_value());
}

// On a machine without a GPU, or in a build without CUDA, there is nothing to compare.
TEST(a_gpu_scans_and_samples_as_the_cpu_does) {
  if (kernels::device_ops() == nullptr || !at::hasCUDA()) {
    std::printf("  no GPU: not compared\n");
    return;
  }
  for (const int64_t vocab : {1, 65, 5003, 151936}) {
    const int64_t rows = 5, blocks = (vocab + 63) / 64;
    const at::Tensor logits = random_rows(rows, vocab, 20, false);
    const at::Tensor maxima = at::empty({rows, blocks}), sums = at::empty({rows, blocks}, at::kDouble);
    ops::scan_logits(logits, 0.8f, maxima, sums);
    const at::Tensor gpu = logits.cuda(), nan = at::full_like(maxima, std::nan("")).cuda();
    const at::Tensor gpu_sums = at::full_like(sums, std::nan("")).cuda();
    ops::scan_logits(gpu, 0.8f, nan, gpu_sums);
    CHECK(nan.cpu().equal(maxima));
    CHECK(at::allclose(gpu_sums.cpu(), sums, 1e-5, 0));
    const std::vector<double> uniforms = uniforms_of(rows);
    for (const auto& options : {SamplerOptions{.temperature = 0}, SamplerOptions{.temperature = 0.8},
                                SamplerOptions{.temperature = 0.8, .top_k = 20},
                                SamplerOptions{.temperature = 0.8, .top_k = 0, .top_p = 0.9}}) {
      const auto here = sample_rows(logits, options, uniforms), there = sample_rows(gpu, options, uniforms);
      for (size_t r = 0; r < uniforms.size(); ++r) {
        CHECK(here[r].token == there[r].token);
        CHECK_CLOSE(here[r].log_prob, there[r].log_prob, 1e-5);
      }
    }
  }
  const at::Tensor bad = random_rows(2, 300, 3, false);
  bad[1][299] = std::nan("");
  const auto sampled = sample_rows(bad.cuda(), {}, uniforms_of(2));
  CHECK(sampled[0].finite && !sampled[1].finite);
}

TEST_MAIN()
