// What is known of a row from part of its logits, and how parts combine.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/host_device.h"

// What parts of a vocabulary (blocks, shards) know of a row of logits, and how they are put together: the
// same on a CPU and in a CUDA kernel.
namespace troupe::kernels {

// Of the logits z of one part, with m = the largest of them. Without logits m is -inf, or so small that
// exp(m - any other) is 0.
struct RowSums {
  static constexpr int64_t kCount = 5;

  double max;       // m
  double sum;       // sum exp(z - m)
  double weighted;  // sum (z - m) exp(z - m)
  double squares;   // sum exp(2 (z - m))
  double target;    // z[target] where the target lies in this part, else 0
};
static_assert(sizeof(RowSums) == RowSums::kCount * sizeof(double));

// part(0), part(1), ... together, in this order.
template <typename Part>
TROUPE_HOST_DEVICE inline RowSums combined(int64_t count, const Part& part) {
  RowSums all{-std::numeric_limits<double>::infinity(), 0, 0, 0, 0};
  for (int64_t i = 0; i < count; ++i) {
    const double max = part(i).max;
    if (all.max < max) all.max = max;
  }
  for (int64_t i = 0; i < count; ++i) {
    const RowSums own = part(i);
    all.target += own.target;
    const double shift = own.max - all.max;
    const double factor = exp(shift);
    if (factor == 0) continue;  // its terms, shift included, are all below the smallest double
    all.sum += factor * own.sum;
    all.weighted += factor * (own.weighted + shift * own.sum);
    all.squares += factor * factor * own.squares;
  }
  return all;
}

// p = softmax(z) over the whole vocabulary.
struct RowOutputs {
  double log_prob, lse, entropy, sum_pi_squared;
};
TROUPE_HOST_DEVICE inline RowOutputs outputs_of(const RowSums& all) {
  const double log_sum = log(all.sum);
  return {all.target - all.max - log_sum, all.max + log_sum, log_sum - all.weighted / all.sum,
          all.squares / (all.sum * all.sum)};
}

}  // namespace troupe::kernels
