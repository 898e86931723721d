#include "optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "kernels/cpu/stochastic_rounding.h"
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

// The same buffers with weights and moments in bfloat16.
AdamWBuffers narrow(const AdamWBuffers& wide) {
  return {wide.param.to(at::kBFloat16),
          wide.grad.clone(),
          wide.exp_avg.to(at::kBFloat16),
          wide.exp_avg_sq.to(at::kBFloat16),
          {}};
}

AdamWBuffers part(const AdamWBuffers& whole, int64_t begin, int64_t count) {
  const auto of = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
  return {of(whole.param), of(whole.grad), of(whole.exp_avg), of(whole.exp_avg_sq), {}};
}

AdamWBuffers trained_for_a_while(int64_t count) {
  at::manual_seed(11);
  AdamWBuffers buffers = buffers_of(count, false);
  buffers.exp_avg.normal_().mul_(1e-3);
  buffers.exp_avg_sq.uniform_().mul_(1e-5);
  return buffers;
}

TEST(bfloat16_is_rounded_to_a_neighbour_of_what_float32_gives) {
  AdamWOptions options;
  options.weight_decay = 0.1;
  AdamWBuffers rounded = narrow(trained_for_a_while(16384 + 33));
  AdamWBuffers exact{rounded.param.to(at::kFloat),
                     rounded.grad,
                     rounded.exp_avg.to(at::kFloat),
                     rounded.exp_avg_sq.to(at::kFloat),
                     {}};
  adamw_step(rounded, options, 1e-3, 0.5, 7);
  adamw_step(exact, options, 1e-3, 0.5, 7);
  const auto compare = [](const at::Tensor& got, const at::Tensor& wanted) {
    // The float32 with its low half cut off, and the next one from zero.
    const at::Tensor bits = wanted.view(at::kInt).bitwise_and(~0xffff);
    const at::Tensor down = bits.view(at::kFloat), up = bits.add(0x10000).view(at::kFloat);
    const at::Tensor values = got.to(at::kFloat);
    const at::Tensor went_up = values.eq(up);
    CHECK(values.eq(down).logical_or(went_up).all().item<bool>());
    // Both happen, as often as their distances say.
    const at::Tensor chance = (wanted - down) / (up - down);
    CHECK_CLOSE(went_up.to(at::kFloat).mean().item<double>(), chance.mean().item<double>(), 0.02);
    CHECK(!went_up.all().item<bool>() && went_up.any().item<bool>());
    CHECK(values.index({chance.eq(0)}).equal(wanted.index({chance.eq(0)})));
  };
  compare(rounded.param, exact.param);
  compare(rounded.exp_avg, exact.exp_avg);
  compare(rounded.exp_avg_sq, exact.exp_avg_sq);
}

// To the nearest, none of these updates would change a weight, and no second moment would ever fall.
TEST(bfloat16_follows_a_double_loop_on_average) {
  constexpr int64_t kWeights = 1 << 17, kSteps = 60;
  AdamWOptions options;
  options.weight_decay = 0;
  const double lr = 1e-6;
  AdamWBuffers buffers;
  buffers.param = at::full({kWeights}, 0.02, at::kBFloat16);
  buffers.grad = at::empty({kWeights}, at::kFloat);
  buffers.exp_avg = at::zeros({kWeights}, at::kBFloat16);
  buffers.exp_avg_sq = at::full({kWeights}, 1.0, at::kBFloat16);
  Scalar expected{buffers.param[0].item<double>(), 0, 1.0};
  const double before = expected.param;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const double grad = 1 + 0.1 * static_cast<double>(step % 3);
    buffers.grad.fill_(grad);
    adamw_step(buffers, options, lr, 1e-2, step);
    expected.step(options, lr, static_cast<double>(static_cast<float>(grad)) * 1e-2, step);
  }
  const auto mean = [](const at::Tensor& x) { return x.to(at::kDouble).mean().item<double>(); };
  const double moved = expected.param - before;
  CHECK(std::abs(moved) > 0 && std::abs(moved) < 0x1p-14);  // less than half of the way to a neighbour
  CHECK_CLOSE((mean(buffers.param) - before) / moved, 1, 0.1);
  CHECK_CLOSE(mean(buffers.exp_avg) / expected.exp_avg, 1, 1e-3);
  CHECK_CLOSE(mean(buffers.exp_avg_sq) / expected.exp_avg_sq, 1, 1e-3);
}

TEST(the_rounding_of_bfloat16_depends_on_place_and_step_alone) {
  const int64_t count = 100003;
  const int threads = at::get_num_threads();
  const AdamWBuffers start = narrow(trained_for_a_while(count));
  const auto stepped = [&](int64_t step, SharedPlace place) {
    AdamWBuffers buffers{
        start.param.clone(), start.grad, start.exp_avg.clone(), start.exp_avg_sq.clone(), {}};
    adamw_step(buffers, {}, 1e-3, 1.0, step, place);
    return buffers;
  };
  const auto same = [](const AdamWBuffers& a, const AdamWBuffers& b) {
    return at::equal(a.param, b.param) && at::equal(a.exp_avg, b.exp_avg) &&
           at::equal(a.exp_avg_sq, b.exp_avg_sq);
  };
  const AdamWBuffers once = stepped(3, {5, 0});
  for (const kernels::Isa isa : kernels::supported_isas()) {
    kernels::select_isa(isa);
    for (const int n : {1, 3}) {
      at::set_num_threads(n);
      CHECK(same(once, stepped(3, {5, 0})));
    }
  }
  kernels::select_isa(kernels::best_isa());
  at::set_num_threads(threads);
  CHECK(!same(once, stepped(4, {5, 0})));
  CHECK(!same(once, stepped(3, {6, 0})));
  CHECK(!same(once, stepped(3, {5, 16})));
  // Two ranks that share the buffer.
  AdamWBuffers shared{start.param.clone(), start.grad, start.exp_avg.clone(), start.exp_avg_sq.clone(), {}};
  const int64_t half = 50016;
  adamw_step(part(shared, 0, half), {}, 1e-3, 1.0, 3, {5, 0});
  adamw_step(part(shared, half, count - half), {}, 1e-3, 1.0, 3, {5, half});
  CHECK(same(once, shared));
}

TEST(infinities_and_nan_are_not_rounded_to_numbers) {
  const auto rounded = [](float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    const uint32_t wide = uint32_t{kernels::rounded_stochastically(bits, 0xffff)} << 16;
    float back;
    std::memcpy(&back, &wide, sizeof(back));
    return back;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(rounded(infinity) == infinity && rounded(-infinity) == -infinity);
  CHECK(std::isnan(rounded(std::nanf(""))));
  CHECK(rounded(std::numeric_limits<float>::max()) == infinity);  // its upper neighbour
  CHECK(rounded(0.0f) == 0 && std::signbit(rounded(-0.0f)));
  CHECK(rounded(-1.5f) == -1.5f);
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

}  // namespace

TEST_MAIN()
