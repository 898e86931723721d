#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "long_training.h"

// Tensor-parallel engines over the batches of long_training.h, beside one process that has all sequences.
namespace troupe::test {

// 8 heads over 2 key heads: 4 ranks have copies of these. 4 divides neither the MLP nor the vocabulary of 50.
inline EngineOptions tensor_options(const std::string& variant, HeadKind head, int64_t tp,
                                    bool sequence_parallel) {
  EngineOptions options = long_options(variant, head);
  options.model.num_heads = 8;
  options.model.num_kv_heads = 2;
  options.model.intermediate_size = 42;
  if (options.model.moe) options.model.moe->intermediate_size = 18;
  options.parallel.tp = tp;
  options.sequence_parallel = sequence_parallel;
  return options;
}

inline EngineOptions alone(EngineOptions options) {
  options.parallel = {};
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

// The numbers of one process. owners[i]: the tensor-parallel group that has sequence i.
inline void compare(const EngineOptions& options, const std::vector<int64_t>& owners, int64_t groups,
                    const Task& task, const Tolerance& tolerance = {}) {
  const int64_t tp = options.parallel.tp;
  const auto whole = create_engine(alone(options));
  const Outcome expected =
      work(*whole, options.model.head, long_batch(0, std::vector<int64_t>(kLongSequences, 0)), task);
  const std::vector<Outcome> actual = work_together(options, tp * groups, owners, task);
  for (const Outcome& rank : actual) {
    if (rank.weights.empty()) return;  // it has thrown, which is reported already
  }
  for (int64_t rank = 0; rank < tp * groups; ++rank) {
    const Outcome& own = actual[static_cast<size_t>(rank)];
    const Outcome& first = actual[static_cast<size_t>(rank / tp * tp)];  // of its group
    for (const auto column :
         {&LogProbResult::log_probs, &LogProbResult::entropy, &LogProbResult::sum_pi_squared}) {
      if (!(expected.before.*column).defined()) continue;
      const at::Tensor difference =
          own.before.*column - part_of(expected.before.*column, rank / tp, owners);
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
    double loss = 0;
    for (int64_t group = 0; group < groups; ++group) {
      const Metrics& metrics = actual[static_cast<size_t>(group * tp)].metrics[step];
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

}  // namespace troupe::test
