// CUDA's row kernels and optimiser against the references in float64 on the CPU.
#include <ATen/ATen.h>

#include "cuda_inputs.h"
#include "kernels/reference.h"
#include "kernels/split_norm.h"
#include "kernels/xielu.h"
#include "optim/adamw.h"

namespace {

using namespace troupe;
using namespace troupe::test;
namespace reference = ops::reference;

template <typename Body>
void for_each_shape(const Body& body) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t cols : {1, 7, 48, 513, 4096}) {
      for (const int64_t rows : {1, 3, 640}) body(type, rows, cols);
    }
  }
}

TEST(norms_match_the_float64_reference) {
  at::manual_seed(1);
  for_each_shape([](at::ScalarType type, int64_t rows, int64_t cols) {
    for (const auto& [kind, offset, biased] :
         {std::tuple(NormKind::kRms, false, false), std::tuple(NormKind::kRms, true, false),
          std::tuple(NormKind::kLayer, false, true)}) {
      const std::string what = named("norm", type, rows, cols);
      const ops::NormSpec spec{kind, cols == 1 ? 0.1 : 1e-5, offset};
      const bool layer = kind == NormKind::kLayer;
      const int64_t shift = cols % 8 == 0 ? 0 : 1;
      const at::Tensor x = strided(random({rows, cols}, type), shift), weight = random({cols}, type);
      const at::Tensor bias = biased ? random({cols}, type) : at::Tensor();
      const at::Tensor dy = strided(random({rows, cols}, type), 2);
      const at::Tensor y = strided(poisoned({rows, cols}, type), 1), rstd = poisoned({rows}, at::kFloat);
      const at::Tensor mean = layer ? poisoned({rows}, at::kFloat) : at::Tensor();
      const at::Tensor y64 = at::empty({rows, cols}, at::kDouble), rstd64 = at::empty({rows}, at::kDouble);
      const at::Tensor mean64 = layer ? at::empty({rows}, at::kDouble) : at::Tensor();
      ops::norm_forward(spec, x, weight, bias, y, rstd, mean);
      reference::norm_forward(spec, wide(x), wide(weight), wide(bias), y64, rstd64, mean64);
      check_near(y, y64, tolerance(type), what + " y");
      check_near(rstd, rstd64, kFloatTolerance, what + " rstd");

      const at::Tensor dx = poisoned({rows, cols}, type), dweight = on_gpu(at::full({cols}, 0.5, at::kFloat));
      const at::Tensor dbias = biased ? on_gpu(at::full({cols}, -0.5, at::kFloat)) : at::Tensor();
      const at::Tensor dx64 = at::empty({rows, cols}, at::kDouble), dweight64 = wide(dweight),
                       dbias64 = wide(dbias);
      ops::norm_backward(spec, dy, x, weight, rstd, mean, dx, false, dweight, dbias);
      reference::norm_backward(spec, wide(dy), wide(x), wide(weight), rstd64, mean64, dx64, false, dweight64,
                               dbias64);
      check_near(dx, dx64, tolerance(type), what + " dx");
      check_near(dweight, dweight64, 10 * kFloatTolerance, what + " dweight");
      if (biased) check_near(dbias, dbias64, 10 * kFloatTolerance, what + " dbias");

      const at::Tensor start = random({rows, cols}, type);
      const at::Tensor sum = start.clone(), in_place = dy.clone();
      ops::norm_backward(spec, dy, x, weight, rstd, mean, sum, true, {}, {});
      check_near(sum, wide(start) + dx64, tolerance(type), what + " accumulated dx");
      ops::norm_backward(spec, in_place, x, weight, rstd, mean, in_place, false, {}, {});
      check_near(in_place, dx64, tolerance(type), what + " dx in place");
    }
  });
}

TEST(norms_of_rows_in_parts_match_the_float64_reference) {
  at::manual_seed(2);
  for_each_shape([](at::ScalarType type, int64_t rows, int64_t cols) {
    const std::string what = named("split norm", type, rows, cols);
    const ops::NormSpec spec{NormKind::kRms, 1e-5, cols % 2 == 0};
    const int64_t shift = cols % 8 == 0 ? 0 : 1, count = 2 * cols;
    const at::Tensor x = strided(random({rows, cols}, type), shift), weight = random({cols}, type);
    const at::Tensor dy = strided(random({rows, cols}, type), 2), start = dy.clone();
    const auto sums = [&] { return std::pair(poisoned({rows}, at::kFloat), at::empty({rows}, at::kDouble)); };
    const auto [squares, squares64] = sums();
    const auto [products, products64] = sums();
    ops::split_norm_squares(x, squares);
    reference::split_norm_squares(wide(x), squares64);
    check_near(squares, squares64, kFloatTolerance, what + " squares");
    ops::split_norm_products(spec, dy, x, weight, products);
    reference::split_norm_products(spec, wide(dy), wide(x), wide(weight), products64);
    check_near(products, products64, 10 * kFloatTolerance, what + " products");

    const at::Tensor y = strided(poisoned({rows, cols}, type), 1),
                     dweight = on_gpu(at::full({cols}, 0.5, at::kFloat));
    const at::Tensor y64 = at::empty({rows, cols}, at::kDouble), dx64 = at::empty({rows, cols}, at::kDouble);
    const at::Tensor dweight64 = wide(dweight);
    ops::split_norm_forward(spec, x, weight, squares, count, y);
    reference::split_norm_forward(spec, wide(x), wide(weight), squares64, count, y64);
    check_near(y, y64, tolerance(type), what + " y");
    ops::split_norm_backward(spec, start, x, weight, squares, products, count, start, dweight);
    reference::split_norm_backward(spec, wide(dy), wide(x), wide(weight), squares64, products64, count, dx64,
                                   dweight64);
    check_near(start, dx64, tolerance(type), what + " dx in place");
    check_near(dweight, dweight64, 10 * kFloatTolerance, what + " dweight");
  });
}

TEST(rotary_and_qk_norm_match_the_float64_reference) {
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t dim : {14, 24, 64, 128}) {
      for (const int64_t rows : {1, 3, 640}) {
        for (const ops::RotarySpec& spec : {ops::RotarySpec{3, 1, dim, dim, false, 1e-6, false},
                                            ops::RotarySpec{4, 2, dim, dim, true, 1e-6, false},
                                            ops::RotarySpec{2, 1, dim, dim / 4 * 2, false, 1e-6, false},
                                            ops::RotarySpec{3, 2, dim, dim / 4 * 2, true, 1e-6, false},
                                            ops::RotarySpec{4, 2, dim, dim, true, 1e-6, true},
                                            ops::RotarySpec{2, 2, dim, 0, true, 1e-5, true}}) {
          const std::string what = named("rotary", type, rows, dim);
          const int64_t heads = spec.num_heads + spec.num_kv_heads, width = (heads + spec.num_kv_heads) * dim;
          const at::Tensor angle =
              at::outer(at::arange(40, at::kDouble), at::rand({spec.rotary_dim / 2}, at::kDouble));
          const at::Tensor cos = on_gpu(angle.cos().to(at::kFloat)), sin = on_gpu(angle.sin().to(at::kFloat));
          const at::Tensor positions = on_gpu(at::randint(40, {rows}, at::kInt));
          const at::Tensor pre = strided(random({rows, width}, type), 1), q = random({dim}, type),
                           k = random({dim}, type), dout = random({rows, width}, type);
          const at::Tensor qkv = pre.clone(), rstd = poisoned({rows, heads}, at::kFloat);
          const at::Tensor qkv64 = wide(pre), rstd64 = at::empty({rows, heads}, at::kDouble);
          ops::qk_norm_rotary_forward(spec, qkv, positions, cos, sin, q, k, rstd);
          reference::qk_norm_rotary_forward(spec, qkv64, positions.cpu(), wide(cos), wide(sin), wide(q),
                                            wide(k), rstd64);
          check_near(qkv, qkv64, tolerance(type), what + " forward");

          const at::Tensor dqkv = strided(dout, 2), dqkv64 = wide(dout);
          const at::Tensor dq = on_gpu(at::full({dim}, 0.5, at::kFloat)),
                           dk = on_gpu(at::full({dim}, -1.0, at::kFloat));
          const at::Tensor dq64 = wide(dq), dk64 = wide(dk);
          const at::Tensor saved = spec.qk_norm ? pre : at::Tensor();
          ops::qk_norm_rotary_backward(spec, dqkv, saved, positions, cos, sin, q, k, rstd, dq, dk);
          reference::qk_norm_rotary_backward(spec, dqkv64, wide(saved), positions.cpu(), wide(cos), wide(sin),
                                             wide(q), wide(k), rstd64, dq64, dk64);
          check_near(dqkv, dqkv64, tolerance(type), what + " backward");
          check_near(dq, dq64, 20 * kFloatTolerance, what + " dq_weight");
          check_near(dk, dk64, 20 * kFloatTolerance, what + " dk_weight");
        }
      }
    }
  }
}

TEST(activations_match_the_float64_reference) {
  at::manual_seed(3);
  for_each_shape([](at::ScalarType type, int64_t rows, int64_t cols) {
    for (const Activation kind :
         {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu,
          Activation::kRelu, Activation::kSquaredRelu, Activation::kSigmoid}) {
      for (const bool gated : {true, false}) {
        const std::string what = named(gated ? "gated activation" : "activation", type, rows, cols);
        const int64_t width = gated ? 2 * cols : cols;
        const at::Tensor x = strided(4 * random({rows, width}, type), cols % 8 == 0 ? 0 : 1);
        const at::Tensor dout = strided(random({rows, cols}, type), 2);
        const at::Tensor out = poisoned({rows, cols}, type), dx = poisoned({rows, width}, type);
        const at::Tensor again = poisoned({rows, cols}, type);
        const at::Tensor out64 = at::empty({rows, cols}, at::kDouble),
                         dx64 = at::empty({rows, width}, at::kDouble);
        reference::activation_forward(kind, gated, wide(x), out64);
        reference::activation_backward(kind, gated, wide(dout), wide(x), dx64, {});
        ops::activation_forward(kind, gated, x, out);
        ops::activation_backward(kind, gated, dout, x, dx, again);
        check_near(out, out64, tolerance(type), what + " forward");
        check_near(dx, dx64, tolerance(type), what + " backward");
        CHECK(at::equal(out, again));
        const at::Tensor in_place = x.clone();
        ops::activation_backward(kind, gated, dout, in_place, in_place, {});
        CHECK(at::equal(in_place, dx));
      }
    }
  });
}

TEST(xielu_matches_the_float64_reference) {
  at::manual_seed(3);
  for_each_shape([](at::ScalarType type, int64_t rows, int64_t cols) {
    const std::string what = named("xielu", type, rows, cols);
    const auto scalar = [](double value, at::ScalarType of) { return on_gpu(at::full({1}, value, of)); };
    const ops::Xielu xielu{scalar(0.4, type), scalar(-0.7, type), scalar(0.5, at::kFloat),
                           scalar(-0.01, at::kFloat)};
    // In float64 alphas whose softplus is that of these as the kernel rounds it.
    const auto raw = [&](const at::Tensor& value) { return at::log(at::expm1(wide(value.to(type)))); };
    const at::Tensor beta64 = wide(xielu.beta);
    const at::Tensor p = at::softplus(wide(xielu.alpha_p)), n = beta64 + at::softplus(wide(xielu.alpha_n));
    const ops::Xielu xielu64{raw(p), at::log(at::expm1(wide(n.to(type)) - beta64)), beta64, wide(xielu.eps)};
    const at::Tensor x = strided(2 * random({rows, cols}, type), cols % 8 == 0 ? 0 : 1);
    const at::Tensor dout = strided(random({rows, cols}, type), 2);
    const at::Tensor out = poisoned({rows, cols}, type), dx = poisoned({rows, cols}, type),
                     again = poisoned({rows, cols}, type), sums = poisoned({rows, 2}, at::kFloat);
    const at::Tensor out64 = at::empty({rows, cols}, at::kDouble),
                     dx64 = at::empty({rows, cols}, at::kDouble), sums64 = at::empty({rows, 2}, at::kDouble);
    reference::xielu_forward(xielu64, wide(x), out64);
    reference::xielu_backward(xielu64, wide(dout), wide(x), dx64, {}, sums64);
    ops::xielu_forward(xielu, x, out);
    ops::xielu_backward(xielu, dout, x, dx, again, sums);
    check_near(out, out64, tolerance(type), what + " forward");
    check_near(dx, dx64, tolerance(type), what + " backward");
    check_near(sums, sums64, 20 * kFloatTolerance, what + " sums");
    CHECK(at::equal(out, again));
    const at::Tensor in_place = x.clone();
    ops::xielu_backward(xielu, dout, in_place, in_place, {}, {});
    CHECK(at::equal(in_place, dx));
  });
}

TEST(adamw_and_the_gradient_norm_match_the_cpu) {
  at::manual_seed(4);
  for (const int64_t count : {1, 33, 300007}) {
    AdamWBuffers cpu{at::randn({count}), at::randn({count}), at::zeros({count}), at::zeros({count}),
                     at::zeros({count}, at::kBFloat16)};
    const AdamWBuffers gpu{on_gpu(cpu.param), on_gpu(cpu.grad), on_gpu(cpu.exp_avg), on_gpu(cpu.exp_avg_sq),
                           poisoned({count}, at::kBFloat16)};
    AdamWOptions options;
    options.weight_decay = 0.1;
    for (int64_t step = 1; step <= 5; ++step) {
      cpu.grad.copy_(at::randn({count}));
      gpu.grad.copy_(cpu.grad);
      adamw_step(cpu, options, 1e-2, 0.37, step);
      adamw_step(gpu, options, 1e-2, 0.37, step);
    }
    check_near(gpu.param, wide(cpu.param), 2e-6, "adamw param");
    check_near(gpu.exp_avg, wide(cpu.exp_avg), 2e-6, "adamw exp_avg");
    check_near(gpu.exp_avg_sq, wide(cpu.exp_avg_sq), 2e-6, "adamw exp_avg_sq");
    CHECK(at::equal(gpu.compute, gpu.param.to(at::kBFloat16)));
    const double norm = std::sqrt(sum_of_squares(gpu.grad).item<double>());
    CHECK_CLOSE(norm, wide(gpu.grad).norm().item<double>(), 1e-9 * norm);
    CHECK(norm == std::sqrt(sum_of_squares(gpu.grad).item<double>()));
    gpu.grad[count - 1] = kNan;
    CHECK(std::isnan(sum_of_squares(gpu.grad).item<double>()));
  }
}

// Random numbers are the same, so that only values whose float32 differs in its last bits go another way.
TEST(adamw_rounds_bfloat16_as_the_cpu_does) {
  at::manual_seed(5);
  const int64_t count = 300007;
  const auto narrow = [&](double scale) { return at::rand({count}).mul(scale).to(at::kBFloat16); };
  const AdamWBuffers cpu{narrow(1), at::randn({count}), narrow(1e-2), narrow(1e-3), {}};
  const AdamWBuffers gpu{
      on_gpu(cpu.param), on_gpu(cpu.grad), on_gpu(cpu.exp_avg), on_gpu(cpu.exp_avg_sq), {}};
  const AdamWOptions options;
  adamw_step(cpu, options, 1e-3, 0.37, 7, {3, 1000});
  adamw_step(gpu, options, 1e-3, 0.37, 7, {3, 1000});
  for (const auto buffer : {&AdamWBuffers::param, &AdamWBuffers::exp_avg, &AdamWBuffers::exp_avg_sq}) {
    const at::Tensor same = (gpu.*buffer).cpu().eq(cpu.*buffer);
    CHECK(same.to(at::kDouble).mean().item<double>() > 0.999);
    CHECK(at::allclose(wide(gpu.*buffer), wide(cpu.*buffer), 0x1p-7, 0));
  }
}

TEST(rows_of_one_index_are_added_in_the_same_order_in_every_run) {
  at::manual_seed(11);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [targets, count, cols] :
         {std::tuple(1, 1, 1), std::tuple(1, 700, 8), std::tuple(5, 4000, 33), std::tuple(900, 300, 1024)}) {
      const at::Tensor start = random({targets, cols}, type), rows = random({count, cols}, type);
      const at::Tensor index = at::randint(targets, {count}, at::kInt);
      const auto added = [&](const at::Tensor& order) {
        const at::Tensor target = start.clone();
        ops::add_rows(target, order, rows);
        return target;
      };
      const at::Tensor target = added(on_gpu(index)), expected = wide(start);
      expected.index_add_(0, index, wide(rows));
      // Every sum of bfloat16 rows is rounded: the more come together, the further from the exact one.
      const double terms = static_cast<double>(count) / static_cast<double>(targets) + 1;
      check_near(target, expected, terms * tolerance(type), named("add_rows", type, count, cols));
      for (int repeat = 0; repeat < 5; ++repeat) CHECK(target.equal(added(on_gpu(index))));
    }
  }
}

}  // namespace

int main() {
  return run_on_gpu();
}
