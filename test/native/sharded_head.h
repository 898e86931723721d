#pragma once

#include <ATen/ATen.h>

#include "kernels/linear_log_prob.h"

// linear_log_prob over all of a weight, or over a rank's rows of it.
namespace troupe::test {

// The inputs of the head, and gradients by its outputs; all ranks have the same.
struct HeadTask {
  ops::LogProbSpec spec;
  at::Tensor hidden, weight, targets, g, h;
  at::Tensor ids, by_given;  // further tokens of each row and gradients by their log-probs; undefined: none

  HeadTask(int64_t n, int64_t hidden_size, int64_t vocab, const ops::LogProbSpec& s, double magnitude = 1)
      : spec(s) {
    at::manual_seed(static_cast<uint64_t>(n + vocab));
    hidden = at::randn({n, hidden_size}) * magnitude;
    weight = at::randn({vocab, hidden_size});
    targets = at::randint(vocab, {n}, at::kInt);
    g = at::randn({n});
    h = at::randn({n});
  }
  // No two of a row are the same; every second row has its target among them.
  void give_tokens(int64_t k) {
    at::Tensor order = at::rand({hidden.size(0), weight.size(0)});
    for (int64_t r = 0; r < hidden.size(0); r += 2) order[r][targets[r].item<int64_t>()] = 2;
    ids = std::get<1>(order.topk(k, 1)).to(at::kInt);
    by_given = at::randn({hidden.size(0), k});
  }
};

struct HeadOutcome {
  ops::LogProbRows forward, rows;  // of the forward alone, and as the backward has them
  at::Tensor d_hidden, d_weight;   // d_weight: what it adds to 1
};

inline ops::LogProbRows poisoned_rows(int64_t n, const at::TensorOptions& options) {
  const auto make = [&] { return at::full({n}, NAN, options); };
  return {make(), make(), make(), make()};
}

// Forward and backward over the rows of the weight that `shard` says, or all; with the kernels or, in
// float64, with the reference. Results lie on the CPU.
inline HeadOutcome run_head(const HeadTask& task, at::ScalarType type, const ops::VocabularyShard* shard,
                            bool sum_hidden_gradient = true, at::Device device = at::kCPU) {
  ops::LogProbSpec spec = task.spec;
  spec.shard = shard;
  spec.sum_hidden_gradient = sum_hidden_gradient;
  const at::Tensor hidden = task.hidden.to(device, type);
  const at::Tensor rows =
      shard != nullptr ? task.weight.narrow(0, shard->begin(), shard->rows()) : task.weight;
  const at::Tensor weight = rows.to(device, type).contiguous();
  const at::Tensor targets = task.targets.to(device);
  const auto options = at::TensorOptions(type == at::kDouble ? at::kDouble : at::kFloat).device(device);
  const int64_t n = hidden.size(0);
  HeadOutcome out{poisoned_rows(n, options), poisoned_rows(n, options),
                  at::full(hidden.sizes(), NAN, hidden.options()), at::ones(weight.sizes(), options)};
  const bool reference = type == at::kDouble;
  const auto forward = reference ? ops::linear_log_prob_forward_reference : ops::linear_log_prob_forward;
  const auto backward = reference ? ops::linear_log_prob_backward_reference : ops::linear_log_prob_backward;
  const bool given = task.ids.defined();
  if (given) {
    const at::IntArrayRef shape = task.ids.sizes();
    out.forward.top = {at::zeros(shape, options.dtype(at::kInt)), at::full(shape, NAN, options)};
    out.rows.given = {task.ids.to(device), at::full(shape, NAN, options),
                      at::zeros(shape, options.dtype(at::kBool)), at::zeros(shape, options)};
  }
  forward(spec, hidden, weight, targets, out.forward);
  backward(
      spec, hidden, weight, targets, out.rows, true,
      [&](int64_t begin, int64_t end, const at::Tensor& by_log_prob, const at::Tensor& by_entropy) {
        by_log_prob.copy_(task.g.narrow(0, begin, end - begin));
        by_entropy.copy_(task.h.narrow(0, begin, end - begin));
        if (given)
          out.rows.given.gradients.narrow(0, begin, end - begin)
              .copy_(task.by_given.narrow(0, begin, end - begin));
      },
      out.d_hidden, out.d_weight);
  for (at::Tensor* values : {&out.forward.log_probs, &out.forward.lse, &out.forward.entropy,
                             &out.forward.sum_pi_squared, &out.rows.log_probs, &out.rows.lse,
                             &out.rows.entropy, &out.rows.sum_pi_squared, &out.d_hidden, &out.d_weight}) {
    *values = values->cpu();
  }
  for (at::Tensor* values : {&out.forward.top.ids, &out.forward.top.log_probs, &out.rows.given.log_probs,
                             &out.rows.given.among_top}) {
    if (given) *values = values->cpu();
  }
  return out;
}

// The largest error of an element, relative to the element where that is beyond 1.
inline double worst(const at::Tensor& actual, const at::Tensor& expected) {
  if (expected.numel() == 0) return 0;
  return ((actual.to(at::kDouble) - expected).abs() / expected.abs().clamp_min(1)).max().item<double>();
}

// The same relative to the largest element.
inline double worst_of_largest(const at::Tensor& actual, const at::Tensor& expected) {
  return (actual.to(at::kDouble) - expected).abs().max().item<double>() /
         std::max(1e-6, expected.abs().max().item<double>());
}

}  // namespace troupe::test
