// Kernels of attention.cc and attention_backward.cc.
#pragma once

#include <cstdint>

// Row passes of attention between its GEMMs, float32. A block holds the scores of `groups` query
// heads (of one key head) x `queries` consecutive positions from q0, heads outermost, against `cols`
// keys from position k0. Keys outside a row's causal window get probability 0.
namespace troupe::kernels {

struct ScoreBlock {
  int64_t groups, queries, cols, ld;
  int64_t q0, k0;
  int64_t window;  // 0 = full
  float scale, softcap;
};

struct AttentionKernels {
  // scores -> exp(s - new row max) in place; updates row_max and row_sum (flash attention's running
  // statistics) and writes exp(old max - new max) to `correction`.
  void (*softmax)(float* scores, const ScoreBlock& block, float* row_max, float* row_sum, float* correction);
  // scores -> probabilities in place; dprobs (dO V^T) -> d(raw scores) in place.
  void (*softmax_backward)(float* scores, float* dprobs, const ScoreBlock& block, const float* lse,
                           const float* delta);
  // Row r of `count` rows of `cols` numbers, one behind the other, times factors[r], or divided by it.
  void (*scale_rows)(float* values, int64_t count, int64_t cols, const float* factors);
  void (*divide_rows)(float* values, int64_t count, int64_t cols, const float* divisors);
  // Rounded to bfloat16: rows of `cols` numbers, row stride ld, into rows one behind the other.
  void (*round)(const float* source, int64_t rows, int64_t cols, int64_t ld, uint16_t* target);
};
const AttentionKernels& attention_kernels();

}  // namespace troupe::kernels
