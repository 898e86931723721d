// One AdamW step and the sum of squares over a flat range.
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

struct Updated {
  float param, exp_avg, exp_avg_sq;
};

TROUPE_INLINE Updated updated(const AdamWConstants& c, float param, float grad, float exp_avg,
                              float exp_avg_sq) {
  const float g = grad * c.grad_scale;
  const float m = exp_avg + (g - exp_avg) * c.one_minus_beta1;
  const float v = c.beta2 * exp_avg_sq + c.one_minus_beta2 * g * g;
  const float denominator = __builtin_sqrtf(v) * c.inverse_sqrt_bias_correction2 + c.eps;
  return {param * c.decay - c.step_size * m / denominator, m, v};
}

template <bool kCompute>
void adamw_block(const AdamWConstants& c, int64_t n, float* param, const float* grad, float* exp_avg,
                 float* exp_avg_sq, BFloat16* compute) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Updated next = updated(c, param[i], grad[i], exp_avg[i], exp_avg_sq[i]);
    exp_avg[i] = next.exp_avg;
    exp_avg_sq[i] = next.exp_avg_sq;
    param[i] = next.param;
    if (kCompute) store(compute + i, next.param);
  }
}

void adamw_bfloat16(const AdamWConstants& c, const RoundingStream& stream, int64_t n, void* params,
                    const float* grad, void* exp_avgs, void* exp_avg_sqs) {
  auto* param = static_cast<BFloat16*>(params);
  auto* exp_avg = static_cast<BFloat16*>(exp_avgs);
  auto* exp_avg_sq = static_cast<BFloat16*>(exp_avg_sqs);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Updated next = updated(c, load(param + i), grad[i], load(exp_avg + i), load(exp_avg_sq + i));
    const RandomBits random = random_bits(stream, i);
    param[i].bits = rounded_stochastically(bits_of(next.param), random.a >> 16);
    exp_avg[i].bits = rounded_stochastically(bits_of(next.exp_avg), random.a & 0xffffu);
    exp_avg_sq[i].bits = rounded_stochastically(bits_of(next.exp_avg_sq), random.b >> 16);
  }
}

void adamw(const AdamWConstants& c, int64_t n, float* param, const float* grad, float* exp_avg,
           float* exp_avg_sq, void* compute) {
  if (compute != nullptr) {
    adamw_block<true>(c, n, param, grad, exp_avg, exp_avg_sq, static_cast<BFloat16*>(compute));
  } else {
    adamw_block<false>(c, n, param, grad, exp_avg, exp_avg_sq, nullptr);
  }
}

void add_sum_of_squares(const float* x, int64_t n, double* sum) {
  const int64_t half = n / 2;
  double low = 0, high = 0;
#pragma omp simd reduction(+ : low, high)
  for (int64_t i = 0; i < half; ++i) {
    const double a = x[i];
    const double b = x[i + half];
    low += a * a;
    high += b * b;
  }
  for (int64_t i = 2 * half; i < n; ++i) low += static_cast<double>(x[i]) * x[i];
  *sum += low + high;
}

}  // namespace

extern const OptimKernels optim_table;
const OptimKernels optim_table = {adamw, adamw_bfloat16, add_sum_of_squares};

}  // namespace troupe::kernels::TROUPE_ISA
