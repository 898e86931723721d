// xIELU by every route against float64 autograd of its formula.
#include "kernels/xielu.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernel_routes.h"

namespace {

using namespace troupe;
using namespace troupe::test;

struct Scalars {
  ops::Xielu xielu;
  at::Tensor p, n;  // float64, as the rows see them
};

Scalars scalars_of(at::ScalarType type) {
  const auto scalar = [](double value, at::ScalarType of) { return at::full({1}, value, of); };
  Scalars c{
      {scalar(0.4, type), scalar(-0.7, type), scalar(0.5, at::kFloat), scalar(-1e-2, at::kFloat)}, {}, {}};
  const auto rounded = [&](const at::Tensor& value) { return leaf(value.to(type)); };
  c.p = rounded(at::softplus(wide(c.xielu.alpha_p)));
  c.n = rounded(0.5 + at::softplus(wide(c.xielu.alpha_n)));
  return c;
}

at::Tensor value_of(const Scalars& c, const at::Tensor& x) {
  const at::Tensor bend = at::expm1(at::minimum(x, wide(c.xielu.eps))) - x;
  return at::where(x.gt(0), c.p * x * x, c.n * bend) + wide(c.xielu.beta) * x;
}

bool is_reference(const Route& route) {
  return route.name == "reference";
}

void forward_by(const Route& route, const Scalars& c, const at::Tensor& x, const at::Tensor& out) {
  is_reference(route) ? ops::reference::xielu_forward(c.xielu, x, out) : ops::xielu_forward(c.xielu, x, out);
}

void backward_by(const Route& route, const Scalars& c, const at::Tensor& dout, const at::Tensor& x,
                 const at::Tensor& dx, const at::Tensor& out, const at::Tensor& sums) {
  is_reference(route) ? ops::reference::xielu_backward(c.xielu, dout, x, dx, out, sums)
                      : ops::xielu_backward(c.xielu, dout, x, dx, out, sums);
}

void check_xielu(const Route& route, at::ScalarType type, const at::Tensor& x, const std::string& what) {
  const Scalars c = scalars_of(type);
  const at::Tensor dout = strided(random(x.sizes(), type)), wide_x = leaf(x);
  const at::Tensor expected = value_of(c, wide_x);
  expected.backward(wide(dout));

  const at::Tensor out = strided(poisoned(x.sizes(), type)), dx = strided(poisoned(x.sizes(), type));
  const at::Tensor again = poisoned(x.sizes(), type), sums = poisoned({x.size(0), 2}, at::kFloat);
  forward_by(route, c, x, out);
  check_near(out, expected.detach(), tolerance(type), what + " forward");
  backward_by(route, c, dout, x, dx, again, sums);
  check_near(dx, wide_x.grad(), tolerance(type), what + " backward");
  check_near(again, expected.detach(), tolerance(type), what + " recomputed");
  const at::Tensor total = sums.to(at::kDouble).sum(0);
  check_near(total.narrow(0, 0, 1), c.p.grad(), 20 * kFloatTolerance, what + " by p");
  check_near(total.narrow(0, 1, 1), c.n.grad(), 20 * kFloatTolerance, what + " by n");
  const at::Tensor in_place = x.clone();
  backward_by(route, c, dout, in_place, in_place, {}, {});
  check_near(in_place, wide_x.grad(), tolerance(type), what + " backward in place");
}

}  // namespace

TEST(matches_float64_autograd) {
  at::manual_seed(3);
  for_each_route([](const Route& route, at::ScalarType type) {
    for (const int64_t cols : {1, 7, 48, 513})
      for (const int64_t rows : {1, 3, 128})
        check_xielu(route, type, strided(2 * random({rows, cols}, type)),
                    route.name + " xielu " + std::to_string(rows) + "x" + std::to_string(cols));
  });
}

TEST(survives_the_whole_range) {
  at::manual_seed(4);
  for_each_route([](const Route& route, at::ScalarType type) {
    check_xielu(route, type, at::linspace(-1e4, 1e4, 2001, at::kFloat).to(type).unsqueeze(0),
                route.name + " range");
  });
}

// Where e^x - 1 - x cancels: what p and n multiply is small there, but not all of it rounding.
TEST(is_exact_near_zero) {
  for_each_route([](const Route& route, at::ScalarType type) {
    if (type != at::kFloat || is_reference(route)) return;
    Scalars c = scalars_of(type);
    c.xielu.eps.fill_(-1e-6);
    const at::Tensor x = -at::logspace(-5, 0.5, 500, 10, at::kFloat).unsqueeze(0);
    const at::Tensor ones = at::ones_like(x), dx = at::empty_like(x);
    for (int64_t j = 0; j < x.size(1); ++j) {
      const at::Tensor sums = at::empty({1, 2});
      backward_by(route, c, ones.narrow(1, j, 1), x.narrow(1, j, 1), dx.narrow(1, j, 1), {}, sums);
      const double at_x = x[0][j].item<double>(), bend = std::expm1(at_x) - at_x;
      const double exact = std::abs(at_x) < 1e-2 ? at_x * at_x * (0.5 + at_x / 6 + at_x * at_x / 24) : bend;
      CHECK_CLOSE(sums[0][1].item<double>(), exact, 2e-6 * exact);
    }
  });
}

// A row's bits must depend neither on how many rows there are nor on where it lies in memory.
TEST(rows_do_not_depend_on_their_surroundings) {
  at::manual_seed(5);
  const int64_t rows = 37, cols = 515;
  for_each_route([&](const Route& route, at::ScalarType type) {
    if (is_reference(route)) return;
    const Scalars c = scalars_of(type);
    const at::Tensor x = random({rows, cols}, type), dout = random({rows, cols}, type);
    const at::Tensor out = at::empty_like(x), dx = at::empty_like(x), sums = at::empty({rows, 2});
    forward_by(route, c, x, out);
    backward_by(route, c, dout, x, dx, {}, sums);
    for (int64_t r = 0; r < rows; ++r) {
      const auto alone = [&](const at::Tensor& source) {  // shifted by r elements
        const at::Tensor space = at::empty({cols + rows}, type);
        return space.narrow(0, r, cols).unsqueeze(0).copy_(source.narrow(0, r, 1));
      };
      const at::Tensor x1 = alone(x), dout1 = alone(dout), out1 = alone(x), sums1 = at::empty({1, 2});
      forward_by(route, c, x1, out1);
      CHECK(at::equal(out1[0], out[r]));
      backward_by(route, c, dout1, x1, x1, {}, sums1);
      CHECK(at::equal(x1[0], dx[r]) && at::equal(sums1[0], sums[r]));
    }
  });
}

TEST(a_nan_stays_one) {
  for_each_route([](const Route& route, at::ScalarType type) {
    const Scalars c = scalars_of(type);
    const at::Tensor x = at::tensor({1.0f, std::nanf(""), -1.0f}).to(type).unsqueeze(0);
    const at::Tensor out = at::empty_like(x);
    forward_by(route, c, x, out);
    const at::Tensor nan = at::isnan(out)[0];
    CHECK(!nan[0].item<bool>() && nan[1].item<bool>() && !nan[2].item<bool>());
  });
}

TEST_MAIN()
