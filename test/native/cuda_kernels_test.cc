#include <ATen/ATen.h>

#include <limits>

#include "base/parallel.h"
#include "check.h"
#include "kernels/attention_reference.h"
#include "kernels/device_ops.h"
#include "kernels/linear_log_prob.h"
#include "kernels/reference.h"
#include "kernels/split_norm.h"
#include "model/adapter.h"
#include "optim/adamw.h"

// The CUDA kernels against the references in float64 on the CPU. Without a GPU, or in a build without CUDA,
// there is nothing to test: the program says so and ctest counts it as skipped.
namespace {

using namespace troupe;
namespace reference = ops::reference;

constexpr double kFloatTolerance = 5e-6;
constexpr double kBFloat16Tolerance = 1e-2;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double tolerance(at::ScalarType type) {
  return type == at::kFloat ? kFloatTolerance : kBFloat16Tolerance;
}

at::Tensor on_gpu(const at::Tensor& x) {
  return x.defined() ? x.to(at::kCUDA) : x;
}
at::Tensor wide(const at::Tensor& x) {
  return x.defined() ? x.to(at::kCPU, at::kDouble) : x;
}
at::Tensor random(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes, at::kFloat).to(type).to(at::kCUDA);
}
at::Tensor poisoned(at::IntArrayRef sizes, at::ScalarType type) {
  return at::full(sizes, kNan, at::TensorOptions().dtype(type).device(at::kCUDA));
}
// [rows, cols] with `shift` elements before and 3 - shift behind each row: every alignment occurs.
at::Tensor strided(const at::Tensor& values, int64_t shift) {
  const at::Tensor frame = poisoned({values.size(0), values.size(1) + 3}, values.scalar_type());
  at::Tensor view = frame.narrow(1, shift, values.size(1));
  view.copy_(values);
  return view;
}

void check_near(const at::Tensor& got, const at::Tensor& expected, double limit, const std::string& what) {
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  const double error = (wide(got) - expected).abs().max().item<double>() / scale;
  test::report(error <= limit, __FILE__, __LINE__,
               what + ": error " + std::to_string(error / limit) + " x the limit");
}

std::string named(const char* what, at::ScalarType type, int64_t rows, int64_t cols) {
  return std::string(what) + " " + at::toString(type) + " " + std::to_string(rows) + "x" +
         std::to_string(cols);
}

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
    for (const Activation kind : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                  Activation::kRelu, Activation::kSigmoid}) {
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

TEST(gemm_adds_bfloat16_and_float32_products_to_a_float32_matrix) {
  at::manual_seed(8);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [m, k, n] :
         {std::tuple(1, 1, 1), std::tuple(7, 33, 1), std::tuple(130, 1, 65), std::tuple(64, 300, 129)}) {
      const at::Tensor a = random({m, k}, type), b = random({k, n}, type);
      const at::Tensor a_t = random({k, m}, type).t(), b_t = random({n, k}, type).t();
      for (const auto& [left, right] :
           {std::pair(a, b), std::pair(a_t, b), std::pair(a, b_t), std::pair(a_t, b_t)}) {
        const at::Tensor out = on_gpu(at::ones({m, n})), fresh = poisoned({m, n}, at::kFloat);
        const at::Tensor product = at::mm(wide(left), wide(right));
        kernels::device_ops()->gemm(left, right, out, true);
        kernels::device_ops()->gemm(left, right, fresh, false);
        check_near(out, product + 1, 1e-5, named("gemm accumulating", type, m, n));
        check_near(fresh, product, 1e-5, named("gemm", type, m, n));
      }
    }
  }
}

struct HeadCase {
  int64_t rows, hidden, vocab;
  double temperature, softcap, magnitude;
};

ops::LogProbRows make_rows(int64_t rows, const at::TensorOptions& options) {
  const auto make = [&] { return at::full({rows}, kNan, options); };
  return {make(), make(), make(), make()};
}

void check_head(const HeadCase& c, at::ScalarType type) {
  const std::string what = named("head", type, c.rows, c.vocab) + " T=" + std::to_string(c.temperature);
  const at::Tensor hidden = random({c.rows, c.hidden}, type) * c.magnitude,
                   weight = random({c.vocab, c.hidden}, type);
  const at::Tensor targets = on_gpu(at::randint(c.vocab, {c.rows}, at::kInt));
  const at::Tensor g = at::randn({c.rows}), h = at::randn({c.rows});
  const ops::RowGradients gradients = [&](int64_t begin, int64_t end, const at::Tensor& lp,
                                          const at::Tensor& ent) {
    lp.copy_(g.narrow(0, begin, end - begin));
    ent.copy_(h.narrow(0, begin, end - begin));
  };
  const ops::LogProbSpec spec{c.temperature, c.softcap};
  const ops::LogProbRows rows = make_rows(c.rows, g.options().device(at::kCUDA)),
                         rows64 = make_rows(c.rows, at::TensorOptions().dtype(at::kDouble));
  const at::Tensor d_hidden = poisoned({c.rows, c.hidden}, type),
                   d_weight = on_gpu(at::ones({c.vocab, c.hidden}));
  const at::Tensor d_hidden64 = at::empty({c.rows, c.hidden}, at::kDouble), d_weight64 = wide(d_weight);
  ops::linear_log_prob_forward(spec, hidden, weight, targets, rows);
  const at::Tensor first = rows.log_probs.clone();
  ops::linear_log_prob_backward(spec, hidden, weight, targets, rows, true, gradients, d_hidden, d_weight);
  CHECK(at::equal(first, rows.log_probs));
  ops::linear_log_prob_backward_reference(spec, wide(hidden), wide(weight), targets.cpu(), rows64, true,
                                          gradients, d_hidden64, d_weight64);
  const double scale = std::max(1.0, c.magnitude / c.temperature);
  check_near(rows.log_probs, rows64.log_probs, 4e-6 * scale, what + " log_probs");
  check_near(rows.entropy, rows64.entropy, 4e-5 * scale, what + " entropy");
  check_near(rows.sum_pi_squared, rows64.sum_pi_squared, 4e-5 * scale, what + " sum_pi_squared");
  // The gradient by the logits is rounded to the dtype of the model before the last two GEMMs.
  const double bound = type == at::kFloat ? 4e-4 : 2e-2;
  check_near(d_hidden, d_hidden64, bound * scale, what + " d_hidden");
  check_near(d_weight, d_weight64, bound * scale, what + " d_weight");
}

// Small integers: every product and sum is exact in float32, and those above 256 are not in bfloat16.
TEST(gradients_of_adapters_are_summed_in_float32) {
  at::manual_seed(9);
  const auto integers = [](at::IntArrayRef sizes) {
    return at::randint(-1, 2, sizes).to(at::kBFloat16).to(at::kCUDA);
  };
  const int64_t n = 2000, in = 40, out = 24, rank = 4, row = 8, rows = 16;
  const at::Tensor x = integers({n, in}).abs(), dy = integers({n, out}).abs();
  const Adapter adapter{integers({rank, in}).abs(),
                        integers({rows, rank}).abs(),
                        on_gpu(at::full({rank, in}, 1000.5)),
                        on_gpu(at::full({rows, rank}, 2000.25)),
                        row,
                        rows,
                        2};
  adapter.accumulate_grad(dy, x, ops::PackedMatrix::of(x, false));
  const at::Tensor d_out = wide(dy).narrow(1, row, rows);
  const at::Tensor by_b = 2000.25 + 2 * at::mm(d_out.t(), at::mm(wide(x), wide(adapter.a).t()));
  const at::Tensor by_a = 1000.5 + 2 * at::mm(at::mm(d_out, wide(adapter.b)).t(), wide(x));
  CHECK(wide(adapter.b_grad).equal(by_b));
  CHECK(wide(adapter.a_grad).equal(by_a));
}

TEST(linear_log_prob_matches_the_float64_reference_over_shapes_and_extremes) {
  at::manual_seed(5);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const HeadCase& c : std::vector<HeadCase>{{128, 16, 5, 1, 0, 1},
                                                   {1, 64, 1000, 1, 0, 1},
                                                   {256, 48, 1025, 0.7, 0, 1},
                                                   {128, 33, 3001, 5, 12, 3},
                                                   {256, 64, 2048, 0.05, 0, 0.1},
                                                   {128, 8, 1500, 1, 0, 300},
                                                   {2304, 64, 32003, 1, 0, 1},
                                                   {128, 1, 1, 1, 0, 1}}) {
      check_head(c, type);
    }
  }
}

TEST(logits_of_1e4_give_finite_results) {
  at::manual_seed(6);
  const auto options = at::TensorOptions().device(at::kCUDA);
  const at::Tensor hidden = at::ones({128, 1}, options);
  const at::Tensor weight = at::linspace(-1e4, 1e4, 3000, options).unsqueeze(1);
  const at::Tensor targets = at::zeros({128}, options.dtype(at::kInt));
  const ops::LogProbRows rows = make_rows(128, options);
  ops::linear_log_prob_forward({1, 0}, hidden, weight, targets, rows);
  CHECK_CLOSE(rows.log_probs[0].item<double>(), -2e4, 2);
  CHECK(rows.entropy.isfinite().all().item<bool>() && rows.sum_pi_squared.isfinite().all().item<bool>());
}

TEST(rows_of_the_head_are_bitwise_independent_of_their_neighbours) {
  at::manual_seed(7);
  const int64_t count = 3000;
  const at::Tensor hidden = random({count, 64}, at::kBFloat16), weight = random({32001, 64}, at::kBFloat16);
  const at::Tensor targets = on_gpu(at::randint(32001, {count}, at::kInt));
  const at::Tensor order = on_gpu(at::randperm(count));
  const auto run = [&](const at::Tensor& x, const at::Tensor& t) {
    const ops::LogProbRows rows = make_rows(x.size(0), x.options().dtype(at::kFloat));
    ops::linear_log_prob_forward({1, 0}, x, weight, t, rows);
    return rows;
  };
  const ops::LogProbRows straight = run(hidden, targets);
  const ops::LogProbRows shuffled = run(hidden.index_select(0, order), targets.index_select(0, order));
  CHECK(at::equal(straight.log_probs.index_select(0, order), shuffled.log_probs));
  CHECK(at::equal(straight.entropy.index_select(0, order), shuffled.entropy));
  const ops::LogProbRows few = run(hidden.narrow(0, 0, 5), targets.narrow(0, 0, 5).contiguous());
  CHECK(at::equal(straight.log_probs.narrow(0, 0, 5), few.log_probs));
}

// q, k, v of `rows` rows in bfloat16, and a gradient.
struct AttentionInputs {
  at::Tensor qkv, dout;
  AttentionInputs(const ops::AttentionSpec& spec, int64_t rows)
      : qkv(random({rows, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim}, at::kBFloat16)),
        dout(random({rows, spec.num_heads * spec.head_dim}, at::kBFloat16)) {}
};
struct AttentionResults {
  at::Tensor out, lse, dqkv;
  AttentionResults(const ops::AttentionSpec& spec, const AttentionInputs& x, const ops::Segments& segments)
      : out(poisoned({x.qkv.size(0), spec.num_heads * spec.head_dim}, at::kBFloat16)),
        lse(poisoned({spec.num_heads, x.qkv.size(0)}, at::kFloat)),
        dqkv(poisoned({x.qkv.size(0), x.qkv.size(1)}, at::kBFloat16)) {
    ops::attention_forward(spec, x.qkv, segments, out, lse);
    ops::attention_backward(spec, x.qkv, out, lse, x.dout, segments, dqkv);
  }
};

TEST(attention_matches_the_float64_reference) {
  at::manual_seed(8);
  const ops::Segments ragged = ops::separate_segments({0, 1, 8, 138, 171});
  const ops::Segments shared{{0, 40, -1}, {40, 41, 0}, {41, 170, 0}, {170, 203, 0}, {203, 260, -1}};
  const ops::Segments single = ops::separate_segments({0, 1, 2, 3});
  for (const ops::AttentionSpec& spec :
       {ops::AttentionSpec{4, 2, 64, 0.125, 0, 0}, ops::AttentionSpec{4, 4, 128, 0.1, 0, 20},
        ops::AttentionSpec{8, 1, 24, 0.2, 0, 0}, ops::AttentionSpec{4, 2, 64, 0.125, 30, 0},
        ops::AttentionSpec{4, 2, 14, 0.25, 0, 0}}) {
    for (const ops::Segments& segments : {ragged, shared, single}) {
      const int64_t real = ops::real_rows(segments), rows = real + 5;
      const AttentionInputs x(spec, rows);
      const AttentionResults got(spec, x, segments);
      const at::Tensor out = at::empty({rows, got.out.size(1)}, at::kDouble);
      const at::Tensor lse = at::zeros({spec.num_heads, rows}, at::kDouble);
      const at::Tensor dqkv = at::empty({rows, x.qkv.size(1)}, at::kDouble);
      ops::attention_forward_reference(spec, wide(x.qkv), segments, out, lse);
      ops::attention_backward_reference(spec, wide(x.qkv), out, lse, wide(x.dout), segments, dqkv);
      const std::string what = "attention, head_dim " + std::to_string(spec.head_dim) + ", " +
                               std::to_string(segments.size()) + " segments";
      check_near(got.out, out, kBFloat16Tolerance, what + " out");
      check_near(got.lse.narrow(1, 0, real), lse.narrow(1, 0, real), 1e-3, what + " lse");
      check_near(got.dqkv, dqkv, 3 * kBFloat16Tolerance, what + " dqkv");
      CHECK(got.dqkv.equal(AttentionResults(spec, x, segments).dqkv));
    }
  }
}

TEST(attention_of_a_row_is_bitwise_independent_of_the_packing) {
  at::manual_seed(9);
  const ops::AttentionSpec spec{8, 2, 64, 0.125, 0, 0};
  const ops::Segments shared{{0, 300, -1}, {300, 301, 0}, {301, 700, 0}, {700, 1000, -1}};
  const AttentionInputs x(spec, 1000);
  const AttentionResults together(spec, x, shared);
  // The prompt and its second response as one sequence of their own.
  AttentionInputs alone(spec, 699);
  alone.qkv = at::cat({x.qkv.narrow(0, 0, 300), x.qkv.narrow(0, 301, 399)});
  const AttentionResults sequence(spec, alone, ops::separate_segments({0, 699}));
  CHECK(sequence.out.narrow(0, 0, 300).equal(together.out.narrow(0, 0, 300)));
  CHECK(sequence.out.narrow(0, 300, 399).equal(together.out.narrow(0, 301, 399)));
}

}  // namespace

int main() {
  if (kernels::device_ops() == nullptr || !at::hasCUDA()) {
    std::printf("skipped: %s\n0 passed, 0 failed\n",
                kernels::device_ops() == nullptr ? "a build without CUDA" : "no GPU");
    return 77;  // SKIP_RETURN_CODE in CMakeLists.txt
  }
  return test::run_all();
}
