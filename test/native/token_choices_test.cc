// The choice of tokens on a device: its code run by one thread and by several against the sampler of the CPU,
// the way of a step over a device of the host's memory, and, where there is one, a GPU.
#include "kernels/token_choices.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "check.h"
#include "fake_device.h"
#include "kernels/device_ops.h"
#include "kernels/one_thread.h"
#include "rollout/random.h"
#include "rollout/sampler.h"
#include "rollout/token_chooser.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Numbers by one seed.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : seed_(seed) {}
  double next() { return uniform(seed_, position_++); }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() * static_cast<double>(n)); }
  template <typename Value>
  Value of(const std::vector<Value>& values) {
    return values[static_cast<size_t>(below(static_cast<int64_t>(values.size())))];
  }

 private:
  uint64_t seed_, position_ = 0;
};

// Some rows have many equal logits, of both zeros, and forbidden tokens.
std::vector<float> random_logits(int64_t vocab, Numbers& random) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  const double scale = random.of<double>({0, 1, 6, 30}), forbidden = random.of<double>({0, 0, 0.3, 0.99});
  const bool ties = random.below(3) == 0;
  for (float& logit : logits) {
    const double x = (random.next() + random.next() - 1) * scale;
    logit = random.next() < forbidden ? -kInfinity : static_cast<float>(ties ? std::round(x) : x);
  }
  logits[static_cast<size_t>(random.below(vocab))] = 0.5f;  // one that is allowed
  return logits;
}

SamplerOptions random_options(Numbers& random) {
  SamplerOptions options;
  options.temperature = random.of<double>({0, 0.3, 1, 1, 1.7});
  options.top_k = random.of<int64_t>({0, 0, 1, 3, 50, 700, 3000});
  options.top_p = random.of<double>({1, 1, 1e-6, 0.5, 0.9, 0.9999});
  options.min_p = random.of<double>({0, 0, 0, 0.05, 1});
  return options;
}

// Several threads that wait for each other, as those of a block do.
struct Threads {
  int64_t own, all;
  std::barrier<>* barrier;

  int64_t rank() const { return own; }
  int64_t size() const { return all; }
  void sync() const { barrier->arrive_and_wait(); }
  int32_t add(int32_t* count, int32_t n) const { return std::atomic_ref(*count).fetch_add(n); }
  void least(int32_t* value, int32_t other) const {
    std::atomic_ref shared(*value);
    int32_t seen = shared.load();
    while (other < seen && !shared.compare_exchange_weak(seen, other)) {
    }
  }
  float weight(float x, float max, float inverse) const {
    return kernels::OneThread().weight(x, max, inverse);
  }
};

struct Outcome {
  int32_t outcome = -1, token = -1;
  float log_prob = 0;
};
Outcome read(const int32_t* words) {
  Outcome result{words[0], words[1]};
  std::memcpy(&result.log_prob, words + 2, sizeof(float));
  return result;
}

// A row of logits with its numbers per block, for teams.
struct Row {
  std::vector<float> logits, maxima;
  std::vector<double> sums, groups;
  kernels::LogitScan scan;

  Row(std::vector<float> from, const SamplerOptions& options) : logits(std::move(from)) {
    const auto vocab = static_cast<int64_t>(logits.size());
    maxima.resize(static_cast<size_t>(kernels::logit_blocks(vocab)));
    sums.resize(maxima.size());
    groups.resize(static_cast<size_t>(kernels::sum_groups(static_cast<int64_t>(maxima.size()))));
    const auto& passes = kernels::logit_block_kernels();
    const float max = passes.block_max(logits.data(), vocab, maxima.data());
    passes.block_sums(logits.data(), vocab, max, kernels::inverse_temperature(options), sums.data());
    scan = {logits.data(), vocab, max, maxima.data(), sums.data(), groups.data()};
  }
};

Outcome by_threads(const kernels::LogitScan& row, const kernels::TokenWish& wish, int64_t count) {
  std::vector<int32_t> out(static_cast<size_t>(kernels::choice_words(wish.top)), -7);
  const auto scratch = std::make_unique<kernels::ChoiceScratch>();
  std::barrier<> barrier(count);
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      kernels::choose_token(Threads{i, count, &barrier}, row, row, wish, *scratch, out.data());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return read(out.data());
}

at::Tensor bytes_of(const void* data, size_t size, int64_t rows) {
  return at::from_blob(const_cast<void*>(data), {rows, static_cast<int64_t>(size)}, at::kByte);
}

// What a step has of a request.
Sequence sequence_of(Numbers& random, int64_t vocab, bool changes) {
  Sequence sequence;
  sequence.request.seed = static_cast<uint64_t>(random.below(1 << 30));
  sequence.request.prompt = {0, static_cast<int32_t>(vocab - 1)};
  sequence.tokens = sequence.request.prompt;
  for (int64_t i = random.below(12); i > 0; --i)
    sequence.tokens.push_back(static_cast<int32_t>(random.below(vocab)));
  for (size_t i = 0; i < sequence.tokens.size(); ++i) sequence.seen[sequence.tokens[i]] += i < 2 ? 0 : 1;
  const SamplerOptions options = random_options(random);
  RequestSampling& s = sequence.request.sampling;
  s.temperature = options.temperature;
  s.top_k = options.top_k;
  s.top_p = options.top_p;
  s.min_p = options.min_p;
  if (random.below(3) == 0) s.top_log_probs = 1 + random.below(20);
  if (!changes) return sequence;
  s.repetition_penalty = random.of<double>({1, 1.3, 0.8});
  s.presence_penalty = random.of<double>({0, 0.7});
  s.frequency_penalty = random.of<double>({0, -0.4});
  const auto any = [&] { return static_cast<int32_t>(random.below(vocab)); };
  for (int64_t i = random.below(5); i > 0; --i) s.logit_bias.emplace_back(any(), random.below(9) - 4.f);
  if (!s.logit_bias.empty()) s.logit_bias.emplace_back(s.logit_bias.front().first, 0.3f);
  s.bad_words = {{any()}, {sequence.tokens.back(), any()}, {any(), any(), any()}};
  if (random.below(2) == 0) {
    s.constrained = true;
    sequence.mask.resize(static_cast<size_t>(std::max<int64_t>(vocab / 32, 1)));
    for (uint32_t& word : sequence.mask) word = static_cast<uint32_t>(random.below(int64_t{1} << 32));
    if (random.below(5) == 0) std::fill(sequence.mask.begin(), sequence.mask.end(), 0);  // allows none
  }
  return sequence;
}

// Rows of logits and their sequences.
struct Step {
  at::Tensor logits;
  std::vector<Sequence> sequences;
  std::vector<LogitsUse> uses;
  std::vector<std::vector<int64_t>> asked;

  Step(int64_t rows, int64_t vocab, uint64_t seed) {
    Numbers random(seed);
    std::vector<at::Tensor> all;
    for (int64_t r = 0; r < rows; ++r) {
      all.push_back(at::tensor(random_logits(vocab, random)));
      if (r % 11 == 7) all.back()[random.below(vocab)] = random.below(2) == 0 ? kInfinity : std::nanf("");
      sequences.push_back(sequence_of(random, vocab, random.below(2) == 0));
    }
    logits = at::stack(all);
    for (int64_t r = 0; r < rows; ++r) {
      const bool target = random.below(5) == 0;
      uses.push_back(
          {&sequences[static_cast<size_t>(r)], static_cast<int32_t>(target ? random.below(vocab) : -1)});
    }
  }

  Choices choose(at::Device device, int64_t most_rows, double softcap = 0, double scaling = 1) {
    const at::Tensor there = logits.to(device);
    asked.clear();
    const auto logits_of = [&](const std::vector<int64_t>& which) {
      asked.push_back(which);
      std::vector<at::Tensor> rows;
      for (const int64_t i : which) rows.push_back(there[i]);
      rows.push_back(there[0]);  // padding
      return at::stack(rows);
    };
    return choose_tokens(logits_of, most_rows, {{0, logits.size(1)}, softcap, scaling}, uses);
  }
};

void check_equal(const Choices& a, const Choices& b) {
  for (size_t i = 0; i < a.chosen.size(); ++i) {
    const Chosen &x = a.chosen[i], &y = b.chosen[i];
    CHECK(x.sampled.finite == y.sampled.finite);
    if (!x.sampled.finite) continue;
    CHECK(x.sampled.token == y.sampled.token);
    CHECK(x.sampled.log_prob == y.sampled.log_prob ||
          std::abs(x.sampled.log_prob - y.sampled.log_prob) <= 2e-5 * (1 + std::abs(x.sampled.log_prob)));
    CHECK(x.top.size() == y.top.size());
    for (size_t t = 0; t < std::min(x.top.size(), y.top.size()); ++t) {
      CHECK(x.top[t].token == y.top[t].token);
      CHECK(x.top[t].log_prob == y.top[t].log_prob ||
            std::abs(x.top[t].log_prob - y.top[t].log_prob) <= 2e-5 * (1 + std::abs(x.top[t].log_prob)));
    }
  }
}

}  // namespace

TEST(one_thread_chooses_with_the_bits_of_the_sampler) {
  Numbers random(1);
  const auto scratch = std::make_unique<kernels::ChoiceScratch>();
  int64_t wide = 0, narrow = 0;
  for (int64_t i = 0; i < 4000; ++i) {
    const auto vocab = random.of<int64_t>({1, 5, 63, 64, 65, 97, 1000, 2049, 5003, 20001});
    const kernels::TokenWish wish{
        .options = random_options(random),
        .uniform = random.of<double>({0, 1 - 0x1p-53, random.next(), random.next()})};
    const Row row(random_logits(vocab, random), wish.options);
    const Sampled expected = sample_token(row.logits.data(), vocab, wish.options, wish.uniform);
    int32_t out[3];
    kernels::choose_token(kernels::OneThread(), row.scan, row.scan, wish, *scratch, out);
    const Outcome chosen = read(out);
    if (chosen.outcome == kernels::kTooWide) {
      ++wide;
      CHECK(wish.options.top_k > kernels::kMostCandidates ||
            static_cast<int64_t>(kept_tokens(row.logits.data(), vocab, wish.options).size()) >=
                kernels::kMostCandidates);
      continue;
    }
    ++narrow;
    CHECK(chosen.outcome == kernels::kChosen);
    CHECK(chosen.token == expected.token && chosen.log_prob == expected.log_prob);
    CHECK(row.logits[static_cast<size_t>(chosen.token)] > -kInfinity);
  }
  std::printf("  %lld rows chosen, %lld too wide\n", static_cast<long long>(narrow),
              static_cast<long long>(wide));
  CHECK(wide > 50 && narrow > 3000);
}

TEST(many_threads_choose_as_one_does) {
  Numbers random(2);
  int64_t wide = 0;
  for (int64_t i = 0; i < 60; ++i) {
    const auto vocab = random.of<int64_t>({1, 65, 1000, 5003});
    const kernels::TokenWish wish{.options = random_options(random), .uniform = random.next(), .top = 3};
    const Row row(random_logits(vocab, random), wish.options);
    const Outcome one = by_threads(row.scan, wish, 1), many = by_threads(row.scan, wish, 3);
    CHECK(one.outcome == many.outcome);
    if (one.outcome == kernels::kTooWide) {
      ++wide;
      continue;
    }
    CHECK(one.token == many.token && one.log_prob == many.log_prob);
  }
  CHECK(wide < 30);
}

TEST(rows_that_are_no_distribution_are_named) {
  const at::Tensor logits = at::zeros({4, 300});
  logits[1][299] = std::nanf("");
  logits[2][70] = kInfinity;
  logits[3].fill_(-kInfinity);
  for (const double temperature : {0.0, 1.0}) {
    std::vector<kernels::TokenWish> wishes(4);
    for (kernels::TokenWish& wish : wishes) wish.options = {.temperature = temperature, .top_k = 5};
    const at::Tensor out = at::zeros({4, 3}, at::kInt);
    const at::Tensor none = at::empty({0}, at::kByte);
    ops::choose_tokens({logits, bytes_of(wishes.data(), sizeof(wishes[0]), 4), none, none, none,
                        at::empty({0}, at::kInt), out});
    CHECK(out.select(1, 0).equal(at::tensor(
        {kernels::kChosen, kernels::kNotFinite, kernels::kNotFinite, kernels::kNotFinite}, at::kInt)));
  }
}

// Requests with all kinds of options side by side, in chunks: tokens, log-probabilities and the most likely
// of the CPU's way, one wait, and no logits on their way to the host.
TEST(a_step_on_the_device_waits_once_and_chooses_as_the_cpu_does) {
  constexpr int64_t kRows = 45;
  for (const int64_t vocab : {1, 65, 1500}) {
    Step step(kRows, vocab, static_cast<uint64_t>(vocab));
    const Choices cpu = step.choose(at::kCPU, 7);
    const at::Tensor there = step.logits.to(fake_device());
    const LogitsOf logits_of = [&](const std::vector<int64_t>& which) {
      return there.narrow(0, which.front(), static_cast<int64_t>(which.size()));
    };
    Choices device;
    const DeviceCounts counts = counted_on_device([&] {
      device = choose_tokens(logits_of, 7, {{0, vocab}, 0, 1}, step.uses);
    });
    check_equal(cpu, device);
    CHECK(device.on_host == 0 && counts.waits == 1);
    const int64_t most = kernels::choice_words(std::min<int64_t>(20, vocab)) * 4;
    CHECK(counts.bytes_to_host <= kRows * most);
    int64_t bad = 0, top = 0;
    for (const Chosen& chosen : cpu.chosen) {
      bad += chosen.sampled.finite ? 0 : 1;
      top += chosen.top.empty() ? 0 : 1;
    }
    CHECK(bad >= 4 && top > 5);
  }
}

TEST(a_soft_cap_comes_before_everything_else) {
  Step step(20, 500, 9);
  const Choices cpu = step.choose(at::kCPU, 20, 4), device = step.choose(fake_device(), 20, 4);
  check_equal(cpu, device);
  const Choices without = step.choose(fake_device(), 20);
  int64_t other = 0;
  for (size_t i = 0; i < cpu.chosen.size(); ++i)
    other += without.chosen[i].sampled.log_prob != cpu.chosen[i].sampled.log_prob ? 1 : 0;
  CHECK(other > 10);
}

// Penalties and biases change what has been divided. By a power of two, so that nothing rounds.
TEST(logits_are_divided_before_everything_else) {
  Step step(20, 500, 9);
  Step larger(20, 500, 9);
  larger.logits.mul_(8);
  for (const at::Device device : {at::Device(at::kCPU), fake_device()}) {
    const Choices expected = step.choose(device, 20), scaled = larger.choose(device, 20, 0, 8);
    for (size_t i = 0; i < expected.chosen.size(); ++i) {
      const Chosen &x = expected.chosen[i], &y = scaled.chosen[i];
      CHECK(x.sampled.finite == y.sampled.finite && x.sampled.token == y.sampled.token);
      CHECK(!x.sampled.finite || x.sampled.log_prob == y.sampled.log_prob);
      CHECK(x.top.size() == y.top.size());
      for (size_t t = 0; t < std::min(x.top.size(), y.top.size()); ++t)
        CHECK(x.top[t].token == y.top[t].token && x.top[t].log_prob == y.top[t].log_prob);
    }
  }
}

TEST(rows_with_too_many_candidates_come_to_the_host) {
  Step step(6, 5000, 3);
  step.logits.fill_(0.25);
  for (size_t i = 0; i < step.uses.size(); ++i) {
    RequestSampling& s = step.sequences[i].request.sampling;
    s = {};
    s.top_p = i % 2 == 0 ? 0.9 : 1;
    if (i == 2) s.logit_bias = {{17, -1.f}};
    step.uses[i].target = -1;
  }
  const Choices cpu = step.choose(at::kCPU, 6), device = step.choose(fake_device(), 6);
  check_equal(cpu, device);
  CHECK(cpu.on_host == 0 && device.on_host == 3);
  CHECK(step.asked.size() == 2 && step.asked.back() == (std::vector<int64_t>{0, 2, 4}));
}

// On a machine without a GPU, or in a build without CUDA, there is nothing to compare.
TEST(a_gpu_chooses_as_the_cpu_does) {
  if (kernels::device_ops() == nullptr || !at::hasCUDA()) {
    std::printf("  no GPU: not compared\n");
    return;
  }
  for (const int64_t vocab : {1, 65, 5003, 151936}) {
    Step step(45, vocab, static_cast<uint64_t>(vocab) + 1);
    const Choices cpu = step.choose(at::kCPU, 45), gpu = step.choose(at::kCUDA, 16);
    check_equal(cpu, gpu);
    const Choices again = step.choose(at::kCUDA, 45);
    for (size_t i = 0; i < gpu.chosen.size(); ++i) {
      CHECK(again.chosen[i].sampled.token == gpu.chosen[i].sampled.token);
      CHECK(!gpu.chosen[i].sampled.finite ||
            again.chosen[i].sampled.log_prob == gpu.chosen[i].sampled.log_prob);
    }
    std::printf("  vocabulary %lld: %lld rows on the host\n", static_cast<long long>(vocab),
                static_cast<long long>(gpu.on_host));
  }
}

TEST_MAIN()
