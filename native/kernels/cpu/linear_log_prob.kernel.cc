// Statistics and gradients of a block of logits.
#include "kernels/cpu/linear_log_prob_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

void stats(float* logits, int64_t rows, int64_t cols, int64_t ld, const LogitsTransform& t, BlockStats* out) {
  for (int64_t r = 0; r < rows; ++r) {
    float* z = logits + r * ld;
    if (t.softcap > 0) {
      const float inner = 1.0f / t.softcap;
      const float outer = t.softcap * t.inv_temperature;
#pragma omp simd
      for (int64_t j = 0; j < cols; ++j) z[j] = outer * vector_tanh(z[j] * inner);
    } else if (t.inv_temperature != 1.0f) {
#pragma omp simd
      for (int64_t j = 0; j < cols; ++j) z[j] *= t.inv_temperature;
    }
    float top = z[0];
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < cols; ++j) top = z[j] > top ? z[j] : top;
    float sum = 0, weighted = 0, squares = 0;
#pragma omp simd reduction(+ : sum, weighted, squares)
    for (int64_t j = 0; j < cols; ++j) {
      const float shifted = z[j] - top;
      const float e = vector_exp(shifted);
      sum += e;
      // exp underflows to 0 long before the product could matter; -inf * 0 must not become NaN.
      weighted += e > 0.0f ? shifted * e : 0.0f;
      squares += e * e;
    }
    out[r] = {top, sum, weighted, squares};
  }
}

void backward(float* logits, int64_t rows, int64_t cols, int64_t ld, const LogitsTransform& t,
              const int64_t* target, const float* lse, const float* entropy, const float* grad_log_prob,
              const float* grad_entropy) {
  // A copy: the compiler must assume that storing to z may change t, and then does not vectorise.
  const float inv_temperature = t.inv_temperature;
  for (int64_t r = 0; r < rows; ++r) {
    float* z = logits + r * ld;
    const float g = grad_log_prob[r];
    const float h = grad_entropy != nullptr ? grad_entropy[r] : 0.0f;
    const float base = g + (h != 0.0f ? h * entropy[r] : 0.0f);
    const float row_lse = lse[r];
    const float target_grad = g * inv_temperature;
    const bool here = target[r] >= 0 && target[r] < cols;
    if (t.softcap > 0) {
      const float to_tanh = 1.0f / (t.softcap * inv_temperature);
      const float at_target = here ? z[target[r]] * to_tanh : 0.0f;
#pragma omp simd
      for (int64_t j = 0; j < cols; ++j) {
        const float log_p = z[j] - row_lse;
        const float tanh = z[j] * to_tanh;
        z[j] = -vector_exp(log_p) * (base + h * log_p) * inv_temperature * (1.0f - tanh * tanh);
      }
      if (here) z[target[r]] += target_grad * (1.0f - at_target * at_target);
    } else {
#pragma omp simd
      for (int64_t j = 0; j < cols; ++j) {
        const float log_p = z[j] - row_lse;  // first: both may be large
        z[j] = -vector_exp(log_p) * (base + h * log_p) * inv_temperature;
      }
      if (here) z[target[r]] += target_grad;
    }
  }
}

}  // namespace

extern const LinearLogProbKernels linear_log_prob_table;
const LinearLogProbKernels linear_log_prob_table = {stats, backward};

}  // namespace troupe::kernels::TROUPE_ISA
