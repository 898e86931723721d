#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "generation.h"
#include "long_training.h"

// Engines of any layout over the batches of long_training.h, beside one process that has all sequences.
namespace troupe::test {

// 8 heads over 2 key heads: 4 ranks have copies of these. 4 divides neither the MLP nor the vocabulary of 50.
inline EngineOptions tensor_options(const std::string& variant, HeadKind head, int64_t tp,
                                    bool sequence_parallel) {
  EngineOptions options = long_options(variant, head);
  give_heads(options.model, 8, 2);
  options.model.intermediate_size = 42;
  give_linear_heads(options.model, 4, 8);
  if (options.model.moe) options.model.moe->intermediate_size = 18;
  options.parallel.tp = tp;
  options.sequence_parallel = sequence_parallel;
  return options;
}

inline EngineOptions alone(EngineOptions options) {
  options.parallel = {};
  options.pipeline = {};
  options.ulysses = 1;
  options.sequence_parallel = false;
  options.prefetch = false;
  options.offload = {};
  return options;
}

inline double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

inline at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.reshape({-1}));
  return at::cat(parts);
}

// The parts of a whole array that the sequences of `group` have.
inline at::Tensor part_of(const at::Tensor& whole, int64_t group, const std::vector<int64_t>& owners) {
  std::vector<at::Tensor> parts{at::empty({0}, whole.options())};
  int64_t start = 0;
  for (int64_t i = 0; i < kLongSequences; ++i) {
    if (owners[static_cast<size_t>(i)] == group) parts.push_back(whole.narrow(0, start, response_of(i)));
    start += response_of(i);
  }
  return at::cat(parts);
}

struct Tolerance {
  double forward = 1e-5, update = 1e-5;
};

// The numbers of one process. owners[i]: the group of ranks called with the same data that has sequence i.
inline void compare(const EngineOptions& options, const std::vector<int64_t>& owners, int64_t groups,
                    const Task& task, const Tolerance& tolerance = {}) {
  const int64_t size = ranks_per_group(options) * groups;
  std::vector<const Outcome*> firsts(static_cast<size_t>(groups), nullptr);  // of each group
  const auto whole = create_engine(alone(options));
  const Outcome expected =
      work(*whole, options.model.head, long_batch(0, std::vector<int64_t>(kLongSequences, 0)), task);
  const std::vector<Outcome> actual = work_together(options, size, owners, task);
  for (const Outcome& rank : actual) {
    if (rank.weights.empty()) return;  // it has thrown, which is reported already
  }
  for (int64_t rank = 0; rank < size; ++rank) {
    const Outcome& own = actual[static_cast<size_t>(rank)];
    const int64_t group = group_of(options, rank, size);
    const Outcome*& found = firsts[static_cast<size_t>(group)];
    if (found == nullptr) found = &own;
    const Outcome& first = *found;
    for (const auto column :
         {&LogProbResult::log_probs, &LogProbResult::entropy, &LogProbResult::sum_pi_squared}) {
      if (!(expected.before.*column).defined()) continue;
      const at::Tensor difference = own.before.*column - part_of(expected.before.*column, group, owners);
      CHECK(difference.numel() == 0 || difference.abs().max().item<double>() < tolerance.forward);
      CHECK((own.before.*column).equal(first.before.*column));
    }
    CHECK(flat(own.weights).equal(flat(actual[0].weights)));
    for (size_t step = 0; step < expected.metrics.size(); ++step) {
      CHECK(own.metrics[step].at("grad_norm") == actual[0].metrics[step].at("grad_norm"));
      CHECK(own.metrics[step] == first.metrics[step]);
    }
  }
  CHECK(relative(flat(actual[0].weights), flat(expected.weights)) < tolerance.update);
  if (!expected.gradients.empty())
    CHECK(relative(flat(actual[0].gradients), flat(expected.gradients)) < 100 * tolerance.update);
  for (size_t step = 0; step < expected.metrics.size(); ++step) {
    const double norm = expected.metrics[step].at("grad_norm");
    CHECK(norm > 0);
    CHECK_CLOSE(actual[0].metrics[step].at("grad_norm") / norm, 1, tolerance.update);
    // Which experts are chosen says the first forward; later ones are of weights that rounding has moved.
    for (const auto& [name, value] : expected.metrics[step]) {
      if (step == 0 && name.rfind("moe/", 0) == 0)
        CHECK_CLOSE(actual[0].metrics[step].at(name), value, tolerance.update);
    }
    double loss = 0;
    for (int64_t group = 0; group < groups; ++group) {
      const Metrics& metrics = firsts[static_cast<size_t>(group)]->metrics[step];
      if (metrics.count("loss") > 0) loss += metrics.at("loss");
    }
    const double whole_loss = expected.metrics[step].at("loss");
    CHECK_CLOSE(loss, whole_loss, tolerance.update * std::max(1.0, std::abs(whole_loss)));
  }
}

inline void compare(const EngineOptions& options, int64_t groups, const Task& task,
                    const Tolerance& tolerance = {}) {
  compare(options, round_robin(groups), groups, task, tolerance);
}

// actor/ppo_kl of an update right after compute_log_prob is exactly 0. Two groups of ranks have every other
// sequence each.
inline void check_first_forward(const EngineOptions& options, int64_t ranks_of_group) {
  on_ranks(2 * ranks_of_group, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const auto engine = create_engine(options, comm);
    LongBatch batch = long_batch(group_of(options, rank, 2 * ranks_of_group), round_robin(2));
    MiniBatches& mini = batch.mini;  // one
    mini = {{0, mini.offsets.back()},
            {mini.global_tokens[0] + mini.global_tokens[1]},
            {mini.global_sequences[0] + mini.global_sequences[1]},
            1};
    const at::Tensor old = engine->compute_log_prob(batch.tokens, 0.9, false, false).log_probs;
    const Metrics metrics =
        engine->update_policy({batch.tokens, batch.mask, old, batch.b, {}, {}, {}}, mini, {}, 0.9)[0];
    CHECK(metrics.at("ppo_kl") == 0);
    CHECK(metrics.at("grad_norm") > 0);
  });
}

// Six samples of two prompts, of kSampled tokens each.
constexpr int64_t kSampled = 12;

inline test::GenerateResult sample(Engine& engine, const test::PromptBatch& prompts) {
  test::SamplingOptions sampling;
  sampling.max_new_tokens = kSampled;
  return test::generate(engine, prompts, sampling);
}

inline test::PromptBatch two_prompts() {
  return {
      at::tensor({1, 2, 3, 9, 8, 40, 41}, at::kInt), at::tensor({0, 3, 7}, at::kInt), 3, {1, 2, 3, 4, 5, 6}};
}

// All ranks have the tokens and bits of each other, and the tokens of one process. body(engine, result) runs
// on each.
template <typename Body>
void check_generation(const EngineOptions& options, int64_t ranks, Body&& body) {
  const test::GenerateResult expected = sample(*create_engine(alone(options)), two_prompts());
  std::vector<test::GenerateResult> results(static_cast<size_t>(ranks));
  on_ranks(ranks, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const auto engine = create_engine(options, comm);
    test::GenerateResult& own = results[static_cast<size_t>(rank)];
    own = sample(*engine, two_prompts());
    body(*engine, own);
  });
  for (const test::GenerateResult& result : results) {
    CHECK(result.tokens.equal(expected.tokens) && result.log_probs.equal(results[0].log_probs));
    CHECK((result.log_probs - expected.log_probs).abs().max().item<double>() < 1e-4);
  }
}

}  // namespace troupe::test
