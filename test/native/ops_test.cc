// Rotary and activations by every route against float64 autograd, and what holds of all row kernels.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernel_routes.h"

namespace {

using namespace troupe;
using namespace troupe::test;

struct Tables {
  at::Tensor cos, sin;
};
Tables tables_of(int64_t positions, int64_t half) {
  const at::Tensor angle = at::outer(at::arange(positions, at::kDouble), at::rand({half}, at::kDouble));
  return {(1.1 * angle.cos()).to(at::kFloat),
          (1.1 * angle.sin()).to(at::kFloat)};  // 1.1: as yarn scales them
}

// The heads of q, k after norm and rotation, v as it is: what the operation does to qkv.
at::Tensor rotary_of(const ops::RotarySpec& spec, const at::Tensor& qkv, const at::Tensor& positions,
                     const Tables& tables, const at::Tensor& q_weight, const at::Tensor& k_weight) {
  const int64_t dim = spec.head_dim;
  const int64_t turning = spec.rotary_dim, half = turning / 2;
  std::vector<at::Tensor> heads;
  for (int64_t h = 0; h < spec.num_heads + 2 * spec.num_kv_heads; ++h) {
    at::Tensor x = qkv.narrow(1, h * dim, dim);
    if (h < spec.num_heads + spec.num_kv_heads) {
      const at::Tensor& weight = h < spec.num_heads ? q_weight : k_weight;
      if (spec.qk_norm) x = norm_of({NormKind::kRms, spec.norm_eps, spec.norm_unit_offset}, x, weight, {});
      if (turning > 0) {
        const at::Tensor cos = wide(tables.cos).index_select(0, positions.to(at::kLong));
        const at::Tensor sin = wide(tables.sin).index_select(0, positions.to(at::kLong));
        const at::Tensor low = x.narrow(1, 0, half), high = x.narrow(1, half, half);
        x = at::cat({low * cos - high * sin, high * cos + low * sin, x.narrow(1, turning, dim - turning)}, 1);
      }
    }
    heads.push_back(x);
  }
  return at::cat(heads, 1);
}

void check_rotary(const Route& route, at::ScalarType type, const ops::RotarySpec& spec, int64_t n) {
  const std::string what = route.name + " rotary D=" + std::to_string(spec.head_dim) +
                           " R=" + std::to_string(spec.rotary_dim) + " n=" + std::to_string(n);
  const int64_t width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim;
  const at::Tensor positions = at::randint(40, {n}, at::kInt);
  const Tables tables = tables_of(40, spec.rotary_dim / 2);
  const at::Tensor pre = strided(random({n, width}, type));
  const at::Tensor q_weight = random({spec.head_dim}, type), k_weight = random({spec.head_dim}, type);
  const at::Tensor dout = random({n, width}, type);

  const at::Tensor wide_pre = leaf(pre), wide_q = leaf(q_weight), wide_k = leaf(k_weight);
  const at::Tensor expected = rotary_of(spec, wide_pre, positions, tables, wide_q, wide_k);
  expected.backward(wide(dout));

  const at::Tensor qkv = strided(pre);
  const at::Tensor rstd = poisoned({n, spec.num_heads + spec.num_kv_heads}, at::kFloat);
  route.rotary_forward(spec, qkv, positions, tables.cos, tables.sin, q_weight, k_weight, rstd);
  // In bfloat16 the normalised head is rounded once more before the rotation.
  check_near(qkv, expected.detach(), 2 * tolerance(type), what + " forward");

  const at::Tensor dqkv = strided(dout);
  const at::Tensor dq = at::full({spec.head_dim}, 0.5, at::kFloat),
                   dk = at::full({spec.head_dim}, -1.0, at::kFloat);
  route.rotary_backward(spec, dqkv, spec.qk_norm ? pre : at::Tensor(), positions, tables.cos, tables.sin,
                        q_weight, k_weight, rstd, dq, dk);
  check_near(dqkv, wide_pre.grad(), tolerance(type), what + " backward");
  if (!spec.qk_norm) return;
  check_near(dq - 0.5, wide_q.grad(), 20 * kFloatTolerance, what + " dq_weight");
  check_near(dk + 1.0, wide_k.grad(), 20 * kFloatTolerance, what + " dk_weight");
}

TEST(rotary_and_qk_norm_match_float64_autograd) {
  at::manual_seed(2);
  for_each_route([](const Route& route, at::ScalarType type) {
    for (const int64_t dim : {14, 24, 64, 128}) {
      for (const int64_t n : {1, 3, 128}) {
        check_rotary(route, type, {3, 1, dim, dim, false, 1e-6, false}, n);
        check_rotary(route, type, {4, 2, dim, dim, true, 1e-6, false}, n);
        check_rotary(route, type, {2, 1, dim, dim / 4 * 2, false, 1e-6, false}, n);
        check_rotary(route, type, {3, 2, dim, dim / 4 * 2, true, 1e-6, false}, n);
        check_rotary(route, type, {2, 2, dim, 0, true, 1e-5, true}, n);
      }
    }
  });
}

at::Tensor activation_of(Activation kind, const at::Tensor& x) {
  switch (kind) {
    case Activation::kSilu: return at::silu(x);
    case Activation::kGelu: return at::gelu(x);
    case Activation::kGeluTanh: return at::gelu(x, "tanh");
    case Activation::kQuickGelu: return x * at::sigmoid(1.702 * x);
    case Activation::kRelu: return at::relu(x);
    case Activation::kSquaredRelu: return at::relu(x).square();
    case Activation::kSigmoid: return at::sigmoid(x);
    case Activation::kClampedSwiglu: return {};  // of pairs, below
    case Activation::kXielu: return {};          // xielu_test.cc
  }
  return {};
}

void check_activation(const Route& route, at::ScalarType type, Activation kind, bool gated, int64_t n,
                      int64_t width) {
  const std::string what = route.name + " activation " + std::to_string(static_cast<int>(kind)) +
                           (gated ? " gated " : " plain ") + std::to_string(n) + "x" + std::to_string(width);
  const at::Tensor x = strided(4 * random({n, gated ? 2 * width : width}, type));
  const at::Tensor dout = strided(random({n, width}, type));
  const at::Tensor wide_x = leaf(x);
  at::Tensor expected;
  if (kind == Activation::kClampedSwiglu) {
    const at::Tensor gate = wide_x.slice(1, 0, std::nullopt, 2).clamp_max(7);
    const at::Tensor up = wide_x.slice(1, 1, std::nullopt, 2).clamp(-7, 7);
    expected = gate * at::sigmoid(1.702 * gate) * (up + 1);
  } else {
    const at::Tensor gate = activation_of(kind, wide_x.narrow(1, 0, width));
    expected = gated ? gate * wide_x.narrow(1, width, width) : gate;
  }
  expected.backward(wide(dout));

  const at::Tensor out = strided(poisoned({n, width}, type));
  route.activation_forward(kind, gated, x, out);
  check_near(out, expected.detach(), tolerance(type), what + " forward");
  const at::Tensor dx = strided(poisoned(x.sizes(), type));
  const at::Tensor again = strided(poisoned({n, width}, type));
  route.activation_backward(kind, gated, dout, x, dx, again);
  check_near(dx, wide_x.grad(), tolerance(type), what + " backward");
  check_near(again, expected.detach(), tolerance(type), what + " recomputed");
  const at::Tensor in_place = x.clone();
  route.activation_backward(kind, gated, dout, in_place, in_place, {});
  check_near(in_place, wide_x.grad(), tolerance(type), what + " backward in place");
}

TEST(activations_match_float64_autograd) {
  at::manual_seed(3);
  for_each_route([](const Route& route, at::ScalarType type) {
    for (const Activation kind :
         {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu,
          Activation::kRelu, Activation::kSquaredRelu, Activation::kSigmoid}) {
      for (const bool gated : {true, false}) {
        for (const int64_t width : {1, 7, 48, 513}) {
          for (const int64_t n : {1, 3, 128}) check_activation(route, type, kind, gated, n, width);
        }
      }
    }
    for (const int64_t width : {1, 7, 48, 513})
      for (const int64_t n : {1, 3, 128})
        check_activation(route, type, Activation::kClampedSwiglu, true, n, width);
  });
}

TEST(activations_survive_the_whole_range) {
  for_each_route([](const Route& route, at::ScalarType type) {
    // (Not beyond: in float32 the slope of tanh-gelu needs x^3.)
    const at::Tensor x = at::linspace(-1e4, 1e4, 2001, at::kFloat).to(type).unsqueeze(0);
    for (const Activation kind :
         {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu,
          Activation::kRelu, Activation::kSquaredRelu, Activation::kSigmoid}) {
      const at::Tensor out = at::empty_like(x), dx = at::empty_like(x);
      route.activation_forward(kind, false, x, out);
      route.activation_backward(kind, false, at::ones_like(x), x, dx, {});
      const at::Tensor wide_x = leaf(x);
      const at::Tensor expected = activation_of(kind, wide_x);
      expected.backward(at::ones_like(wide_x));
      check_near(out, expected.detach(), tolerance(type), route.name + " range");
      check_near(dx, wide_x.grad(), tolerance(type), route.name + " slope range");
    }
  });
}

// A row's bits must depend neither on how many rows there are nor on where it lies in memory.
TEST(rows_do_not_depend_on_their_surroundings) {
  at::manual_seed(4);
  const int64_t n = 37, width = 515, dim = 24;
  for_each_route([&](const Route& route, at::ScalarType type) {
    if (route.name == "reference") return;
    const at::Tensor x = random({n, width}, type), dy = random({n, width}, type),
                     weight = random({width}, type);
    const at::Tensor y = at::empty_like(x), dx = at::empty_like(x), act = at::empty_like(x);
    const at::Tensor rstd = at::empty({n}, at::kFloat);
    route.norm_forward({}, x, weight, {}, y, rstd, {});
    route.norm_backward({}, dy, x, weight, rstd, {}, dx, false, {}, {});
    route.activation_forward(Activation::kGelu, false, x, act);
    const ops::RotarySpec spec{2, 1, dim, dim, true, 1e-6, false};
    const Tables tables = tables_of(n, dim / 2);
    const at::Tensor positions = at::arange(n, at::kInt);
    const at::Tensor head_weight = random({dim}, type);
    const at::Tensor pre = random({n, 4 * dim}, type);
    const at::Tensor qkv = pre.clone();
    route.rotary_forward(spec, qkv, positions, tables.cos, tables.sin, head_weight, head_weight, {});
    for (int64_t r = 0; r < n; ++r) {
      // One row alone, shifted by r elements.
      const auto alone = [&](const at::Tensor& source) {
        const at::Tensor space = at::empty({source.size(1) + n}, type);
        return space.narrow(0, r, source.size(1)).unsqueeze(0).copy_(source.narrow(0, r, 1));
      };
      const at::Tensor x1 = alone(x), y1 = alone(dy), dx1 = alone(dy), act1 = alone(dy), qkv1 = alone(pre);
      const at::Tensor rstd1 = at::empty({1}, at::kFloat);
      route.norm_backward({}, alone(dy), x1, weight, rstd.narrow(0, r, 1), {}, dx1, false, {}, {});
      route.norm_forward({}, x1, weight, {}, y1, rstd1, {});
      route.activation_forward(Activation::kGelu, false, x1, act1);
      route.rotary_forward(spec, qkv1, positions.narrow(0, r, 1), tables.cos, tables.sin, head_weight,
                           head_weight, {});
      CHECK(at::equal(y1[0], y[r]) && at::equal(dx1[0], dx[r]) && at::equal(act1[0], act[r]));
      CHECK(at::equal(qkv1[0], qkv[r]) && at::equal(rstd1[0], rstd[r]));
    }
  });
}

TEST(bfloat16_rounds_to_nearest_even_and_keeps_special_values) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor values =
      at::tensor({1.00390625f, 1.01171875f, -1.00390625f, 3.3895314e38f, inf, -inf, 0.0f, -0.0f})
          .reshape({1, 8});
  // relu's forward copies positive values through the conversion; its slope 1 passes dout through.
  for_each_route([&](const Route& route, at::ScalarType type) {
    const at::Tensor dout = values.to(type);
    const at::Tensor ones = at::ones({1, 8}, type);
    const at::Tensor dx = at::empty({1, 8}, type);
    route.activation_backward(Activation::kRelu, false, dout, ones, dx, {});
    CHECK(at::equal(dx, dout));
    if (type != at::kBFloat16) return;
    // 1.5 x those values needs rounding: compare with LibTorch's.
    const at::Tensor gated = at::cat({at::full({1, 8}, 1.5, type), dout}, 1);
    const at::Tensor out = at::empty({1, 8}, type);
    route.activation_forward(Activation::kRelu, true, gated, out);
    CHECK(at::equal(out, (dout.to(at::kFloat) * 1.5).to(at::kBFloat16)));
  });
}

TEST(rows_are_added_where_their_index_says) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor target = at::ones({3, 2}, type);
    const at::Tensor rows = at::tensor({1.0f, 2.0f, 10.0f, 20.0f, 100.0f, 200.0f}).view({3, 2}).to(type);
    ops::add_rows(target, at::tensor({2, 0, 2}, at::kInt), rows);
    CHECK(target.equal(at::tensor({11.0f, 21.0f, 1.0f, 1.0f, 102.0f, 203.0f}).view({3, 2}).to(type)));
  }
}

TEST(a_nan_stays_in_its_row) {
  for_each_route([](const Route& route, at::ScalarType type) {
    const at::Tensor x = at::ones({3, 20}, type);
    x[1][4] = std::nan("");
    const at::Tensor y = at::empty_like(x), act = at::empty_like(x);
    route.norm_forward({}, x, at::ones({20}, type), {}, y, {}, {});
    route.activation_forward(Activation::kSilu, false, x, act);
    CHECK(y[1].isnan().all().item<bool>() && !y[0].isnan().any().item<bool>() &&
          !y[2].isnan().any().item<bool>());
    CHECK(act.isnan().sum().item<int64_t>() == 1 && act[1][4].isnan().item<bool>());
  });
}

TEST(misuse_is_named) {
  const at::Tensor x = at::zeros({2, 4});
  CHECK_THROWS(ops::norm_forward({}, x, at::ones({3}), {}, x, {}, {}), "norm_forward expected weight");
  CHECK_THROWS(ops::norm_forward({}, x.to(at::kDouble), at::ones({4}), {}, x, {}, {}), "float32 or bfloat16");
  CHECK_THROWS(ops::activation_forward(Activation::kSilu, true, x, at::zeros({2, 4})), "[2, 8]");
  CHECK_THROWS(ops::norm_backward({}, x, x, at::ones({4}), {}, {}, x, false, {}, {}), "rstd is missing");
}

}  // namespace

TEST_MAIN()
