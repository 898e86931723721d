// Kernels of the sampler: one block of logits each.
#pragma once

#include <cstdint>

// Passes of the sampler over the logits of one row, float32, in blocks of kLogitBlock entries
// (the last may be short). Equal values give equal results wherever they lie in memory.
namespace troupe::kernels {

constexpr int64_t kLogitBlock = 64;

struct LogitBlockKernels {
  // The largest entry of each block; returns the largest of all, NaN when an entry is NaN or +infinity.
  float (*block_max)(const float* logits, int64_t n, float* maxima);
  // Per block the sum of exp((logit - max) * inv_temperature).
  // Returns their sum in block order.
  double (*block_sums)(const float* logits, int64_t n, float max, float inv_temperature, double* sums);
  // out = exp((x - max) * inv_temperature).
  void (*weights)(const float* x, int64_t n, float max, float inv_temperature, float* out);
};
const LogitBlockKernels& logit_block_kernels();

}  // namespace troupe::kernels
