// Kernels of linear_log_prob.cc.
#pragma once

#include <cstdint>

// Passes over one block of logits [rows, cols] (row stride ld), float32, between the GEMMs of
// linear_log_prob.
namespace troupe::kernels {

struct LogitsTransform {
  float inv_temperature;
  float softcap;  // 0 = off; applied before the temperature
};

// Per row of a block, with m = its largest logit.
struct BlockStats {
  float max;          // m
  float sum;          // sum exp(z - m)
  float weighted;     // sum (z - m) exp(z - m)
  float sum_squares;  // sum exp(2 (z - m))
};

struct LinearLogProbKernels {
  // Transforms the raw logits in place, then reduces each row.
  void (*stats)(float* logits, int64_t rows, int64_t cols, int64_t ld, const LogitsTransform& transform,
                BlockStats* out);
  // Transformed logits -> gradient by the raw logits, in place:
  //   dz = (g_lp (1[target] - p) - g_ent p (z - lse + H)) / temperature * softcap'.
  // target[r] is relative to the block (outside [0, cols): not here).
  void (*backward)(float* logits, int64_t rows, int64_t cols, int64_t ld, const LogitsTransform& transform,
                   const int64_t* target, const float* lse, const float* entropy, const float* grad_log_prob,
                   const float* grad_entropy);
};
const LinearLogProbKernels& linear_log_prob_kernels();

}  // namespace troupe::kernels
