// The softmax of a block of scores and its gradient.
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

struct Visible {
  int64_t begin, end;
};

// Columns that the query at position q may see.
inline Visible visible(const ScoreBlock& b, int64_t q) {
  int64_t begin = b.window > 0 ? q - b.window + 1 - b.k0 : 0;
  int64_t end = q + 1 - b.k0;
  if (begin < 0) begin = 0;
  if (end < 0) end = 0;  // the block begins after the query
  if (end > b.cols) end = b.cols;
  if (begin > end) begin = end;
  return {begin, end};
}

inline void scale_and_cap(float* row, Visible v, const ScoreBlock& b) {
  if (b.softcap > 0) {
    const float inner = b.scale / b.softcap;
#pragma omp simd
    for (int64_t j = v.begin; j < v.end; ++j) row[j] = b.softcap * vector_tanh(row[j] * inner);
  } else {
#pragma omp simd
    for (int64_t j = v.begin; j < v.end; ++j) row[j] *= b.scale;
  }
}

void clear_outside(float* row, Visible v, int64_t cols) {
  for (int64_t j = 0; j < v.begin; ++j) row[j] = 0;
  for (int64_t j = v.end; j < cols; ++j) row[j] = 0;
}

void softmax(float* scores, const ScoreBlock& b, float* row_max, float* row_sum, float* correction) {
  for (int64_t r = 0; r < b.groups * b.queries; ++r) {
    float* row = scores + r * b.ld;
    const Visible v = visible(b, b.q0 + r % b.queries);
    float top = row_max[r];
    if (b.softcap > 0) {
      scale_and_cap(row, v, b);
#pragma omp simd reduction(max : top)
      for (int64_t j = v.begin; j < v.end; ++j) top = row[j] > top ? row[j] : top;
    } else {
#pragma omp simd reduction(max : top)
      for (int64_t j = v.begin; j < v.end; ++j) {
        row[j] *= b.scale;
        top = row[j] > top ? row[j] : top;
      }
    }
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = v.begin; j < v.end; ++j) {
      const float p = vector_exp_of_scores(row[j] - top);
      row[j] = p;
      sum += p;
    }
    clear_outside(row, v, b.cols);
    // A row that has seen no key yet has max -inf; exp(-inf - -inf) must not become NaN.
    const float factor = row_max[r] == top ? 1.0f : vector_exp_of_scores(row_max[r] - top);
    correction[r] = factor;
    row_sum[r] = row_sum[r] * factor + sum;
    row_max[r] = top;
  }
}

void softmax_backward(float* scores, float* dprobs, const ScoreBlock& b, const float* lse,
                      const float* delta) {
  for (int64_t r = 0; r < b.groups * b.queries; ++r) {
    float* row = scores + r * b.ld;
    float* grad = dprobs + r * b.ld;
    const Visible v = visible(b, b.q0 + r % b.queries);
    scale_and_cap(row, v, b);
    const float row_lse = lse[r];
    const float row_delta = delta[r];
    if (b.softcap > 0) {
      const float inverse = 1.0f / b.softcap;
#pragma omp simd
      for (int64_t j = v.begin; j < v.end; ++j) {
        const float p = vector_exp_of_scores(row[j] - row_lse);
        const float t = row[j] * inverse;
        grad[j] = p * (grad[j] - row_delta) * b.scale * (1.0f - t * t);
        row[j] = p;
      }
    } else {
#pragma omp simd
      for (int64_t j = v.begin; j < v.end; ++j) {
        const float p = vector_exp_of_scores(row[j] - row_lse);
        grad[j] = p * (grad[j] - row_delta) * b.scale;
        row[j] = p;
      }
    }
    clear_outside(row, v, b.cols);
    clear_outside(grad, v, b.cols);
  }
}

inline void scale_row(float* row, int64_t cols, float factor) {
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) row[c] *= factor;
}

void scale_rows(float* values, int64_t count, int64_t cols, const float* factors) {
  for (int64_t r = 0; r < count; ++r) scale_row(values + r * cols, cols, factors[r]);
}

void divide_rows(float* values, int64_t count, int64_t cols, const float* divisors) {
  for (int64_t r = 0; r < count; ++r) scale_row(values + r * cols, cols, 1.0f / divisors[r]);
}

void round(const float* source, int64_t rows, int64_t cols, int64_t ld, uint16_t* target) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = source + r * ld;
    BFloat16* out = reinterpret_cast<BFloat16*>(target + r * cols);
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) store(out + c, row[c]);
  }
}

}  // namespace

extern const AttentionKernels attention_table;
const AttentionKernels attention_table = {softmax, softmax_backward, scale_rows, divide_rows, round};

}  // namespace troupe::kernels::TROUPE_ISA
