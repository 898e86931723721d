#include "optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <limits>
#include <vector>

#include "check.h"
#include "kernels/cpu_dispatch.h"

namespace {

using namespace troupe;

// The global norm, as the optimiser step takes it.
double norm_of(const std::vector<at::Tensor>& grads) {
  double sum = 0;
  for (const at::Tensor& grad : grads) sum += sum_of_squares(grad).item<double>();
  return std::sqrt(sum);
}

AdamWBuffers buffers_of(int64_t count, bool compute) {
  AdamWBuffers buffers;
  buffers.param = at::randn({count}, at::kFloat);
  buffers.grad = at::randn({count}, at::kFloat);
  buffers.exp_avg = at::zeros({count}, at::kFloat);
  buffers.exp_avg_sq = at::zeros({count}, at::kFloat);
  if (compute) buffers.compute = at::full({count}, std::nan(""), at::kBFloat16);
  return buffers;
}

// torch.optim.AdamW, one element, in double.
struct Scalar {
  double param, exp_avg = 0, exp_avg_sq = 0;

  void step(const AdamWOptions& o, double lr, double grad, int64_t t) {
    param *= 1 - lr * o.weight_decay;
    exp_avg += (1 - o.beta1) * (grad - exp_avg);
    exp_avg_sq = o.beta2 * exp_avg_sq + (1 - o.beta2) * grad * grad;
    const double correction1 = 1 - std::pow(o.beta1, t), correction2 = 1 - std::pow(o.beta2, t);
    param -= lr / correction1 * exp_avg / (std::sqrt(exp_avg_sq) / std::sqrt(correction2) + o.eps);
  }
};

TEST(adamw_follows_a_double_loop) {
  at::manual_seed(1);
  AdamWOptions options;
  options.weight_decay = 0.1;
  for (const kernels::Isa isa : kernels::supported_isas()) {
    kernels::select_isa(isa);
    for (const int64_t count : {1, 5, 33, 16384 + 7}) {
      AdamWBuffers buffers = buffers_of(count, true);
      std::vector<Scalar> expected;
      for (int64_t i = 0; i < count; ++i) expected.push_back({buffers.param[i].item<double>()});
      for (int64_t step = 1; step <= 10; ++step) {
        buffers.grad.copy_(at::randn({count}) * (step % 3 == 0 ? 1e-6 : 10.0));
        const double lr = 1e-2 / static_cast<double>(step), scale = 0.37;
        const float* grad = buffers.grad.const_data_ptr<float>();
        for (int64_t i = 0; i < count; ++i)
          expected[static_cast<size_t>(i)].step(options, lr, grad[i] * scale, step);
        adamw_step(buffers, options, lr, scale, step);
      }
      double worst = 0;
      for (int64_t i = 0; i < count; ++i) {
        const Scalar& e = expected[static_cast<size_t>(i)];
        worst = std::max(worst, std::abs(buffers.param.const_data_ptr<float>()[i] - e.param));
        worst = std::max(worst, std::abs(buffers.exp_avg.const_data_ptr<float>()[i] - e.exp_avg) / 10);
      }
      CHECK_CLOSE(worst, 0, 2e-6);
      CHECK(at::equal(buffers.compute, buffers.param.to(at::kBFloat16)));
    }
  }
  kernels::select_isa(kernels::best_isa());
}

TEST(adamw_and_grad_norm_do_not_depend_on_threads) {
  const int64_t count = 100003;
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> params;
  std::vector<double> norms;
  for (const int n : {1, 2, 3}) {
    at::set_num_threads(n);
    at::manual_seed(5);
    AdamWBuffers buffers = buffers_of(count, false);
    norms.push_back(norm_of({buffers.grad, buffers.param}));
    adamw_step(buffers, {}, 1e-3, 1.0, 1);
    params.push_back(buffers.param);
  }
  at::set_num_threads(threads);
  CHECK(at::equal(params[0], params[1]) && at::equal(params[0], params[2]));
  CHECK(norms[0] == norms[1] && norms[0] == norms[2]);
}

TEST(grad_norm_is_exact_and_passes_non_finite_values) {
  at::manual_seed(6);
  std::vector<at::Tensor> grads{at::randn({70001}), at::randn({3}), at::empty({0})};
  double sum = 0;
  for (const at::Tensor& g : grads) sum += g.to(at::kDouble).square().sum().item<double>();
  CHECK_CLOSE(norm_of(grads), std::sqrt(sum), 1e-10 * std::sqrt(sum));
  CHECK(norm_of({}) == 0);
  CHECK_CLOSE(norm_of({at::full({10}, 1e30)}), std::sqrt(10.0) * 1e30,
              1e24);  // no overflow on the way
  grads[0][65000] = std::numeric_limits<float>::infinity();
  CHECK(std::isinf(norm_of(grads)));
  grads[1][1] = std::nan("");
  CHECK(std::isnan(norm_of(grads)));
}

TEST(a_zero_gradient_only_decays) {
  AdamWBuffers buffers = buffers_of(100, false);
  buffers.grad.zero_();
  const at::Tensor before = buffers.param.clone();
  AdamWOptions options;
  options.weight_decay = 0.5;
  adamw_step(buffers, options, 0.1, 1.0, 1);
  CHECK(at::allclose(buffers.param, before * 0.95, 1e-6, 0));
}

TEST(learning_rates) {
  Schedule constant;
  CHECK(learning_rate(constant, 2, 0) == 2 && learning_rate(constant, 2, 1000) == 2);
  constant.warmup_steps = 4;
  CHECK(learning_rate(constant, 2, 0) == 0 && learning_rate(constant, 2, 1) == 0.5 &&
        learning_rate(constant, 2, 4) == 2);

  const Schedule cosine{parse_schedule("cosine"), 4, 12, 0.1};
  CHECK_CLOSE(learning_rate(cosine, 2, 2), 1.0, 1e-15);
  CHECK_CLOSE(learning_rate(cosine, 2, 4), 2.0, 1e-15);
  CHECK_CLOSE(learning_rate(cosine, 2, 8), 2 * 0.55, 1e-12);
  CHECK_CLOSE(learning_rate(cosine, 2, 12), 0.2, 1e-12);
  CHECK_CLOSE(learning_rate(cosine, 2, 20), 0.2, 1e-12);
  CHECK_THROWS(parse_schedule("linear"), "unknown learning-rate schedule 'linear'");
  const Schedule endless{ScheduleKind::kCosine, 4, -1, 0.1};
  CHECK_THROWS(validate(endless), "total number of steps");
}

}  // namespace

TEST_MAIN()
