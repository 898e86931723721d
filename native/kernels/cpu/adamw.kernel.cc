// One AdamW step and the sum of squares over a flat range.
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

template <bool kCompute>
void adamw_block(const AdamWConstants& c, int64_t n, float* param, const float* grad, float* exp_avg,
                 float* exp_avg_sq, BFloat16* compute) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * c.grad_scale;
    const float m = exp_avg[i] + (g - exp_avg[i]) * c.one_minus_beta1;
    const float v = c.beta2 * exp_avg_sq[i] + c.one_minus_beta2 * g * g;
    const float denominator = __builtin_sqrtf(v) * c.inverse_sqrt_bias_correction2 + c.eps;
    const float p = param[i] * c.decay - c.step_size * m / denominator;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = p;
    if (kCompute) store(compute + i, p);
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
const OptimKernels optim_table = {adamw, add_sum_of_squares};

}  // namespace troupe::kernels::TROUPE_ISA
