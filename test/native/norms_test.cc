// Norms by every route, of whole rows and of rows in parts, against float64 autograd.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernel_routes.h"

namespace {

using namespace troupe;
using namespace troupe::test;

void check_norm(const Route& route, at::ScalarType type, const ops::NormSpec& spec, bool has_bias, int64_t n,
                int64_t width) {
  const std::string what = route.name + " norm " + std::to_string(n) + "x" + std::to_string(width);
  const bool layer = spec.kind == NormKind::kLayer;
  const at::Tensor x = strided(random({n, width}, type));
  const at::Tensor weight = random({width}, type);
  const at::Tensor bias = has_bias ? random({width}, type) : at::Tensor();
  const at::Tensor dy = strided(random({n, width}, type));

  const at::Tensor wide_x = leaf(x), wide_weight = leaf(weight);
  const at::Tensor wide_bias = has_bias ? leaf(bias) : at::Tensor();
  const at::Tensor expected = norm_of(spec, wide_x, wide_weight, wide_bias);
  expected.backward(wide(dy));

  const at::Tensor y = strided(poisoned({n, width}, type));
  const at::Tensor rstd = poisoned({n}, at::kFloat);
  const at::Tensor mean = layer ? poisoned({n}, at::kFloat) : at::Tensor();
  route.norm_forward(spec, x, weight, bias, y, rstd, mean);
  check_near(y, expected.detach(), tolerance(type), what + " y");

  const at::Tensor dx = strided(poisoned({n, width}, type));
  const at::Tensor dweight = at::full({width}, 0.5, at::kFloat);
  const at::Tensor dbias = has_bias ? at::full({width}, -0.5, at::kFloat) : at::Tensor();
  route.norm_backward(spec, dy, x, weight, rstd, mean, dx, false, dweight, dbias);
  check_near(dx, wide_x.grad(), tolerance(type), what + " dx");
  check_near(dweight - 0.5, wide_weight.grad(), 10 * kFloatTolerance, what + " dweight");
  if (has_bias) check_near(dbias + 0.5, wide_bias.grad(), 10 * kFloatTolerance, what + " dbias");

  const at::Tensor start = random({n, width}, type);
  const at::Tensor sum = start.clone();
  route.norm_backward(spec, dy, x, weight, rstd, mean, sum, true, {}, {});
  check_near(sum, wide(start) + wide_x.grad(), tolerance(type), what + " accumulated dx");
  const at::Tensor in_place = dy.clone();
  route.norm_backward(spec, in_place, x, weight, rstd, mean, in_place, false, {}, {});
  check_near(in_place, wide_x.grad(), tolerance(type), what + " dx in place");
}

TEST(norms_match_float64_autograd) {
  at::manual_seed(1);
  for_each_route([](const Route& route, at::ScalarType type) {
    for (const int64_t width : {1, 7, 48, 513}) {
      for (const int64_t n : {1, 3, 128}) {
        // One column leaves LayerNorm nothing but eps: use one that is not tiny.
        const double eps = width == 1 ? 0.1 : 1e-5;
        check_norm(route, type, {NormKind::kRms, eps, false}, false, n, width);
        check_norm(route, type, {NormKind::kRms, eps, true}, false, n, width);
        check_norm(route, type, {NormKind::kLayer, eps, false}, true, n, width);
        check_norm(route, type, {NormKind::kLayer, eps, false}, false, n, width);
      }
    }
  });
}

// Columns of two ranks, each of which has a part of a row: sums of both make what one norm makes of the
// whole.
void check_split_norm(const Route& route, at::ScalarType type, bool unit_offset, int64_t n, int64_t width,
                      int64_t first) {
  const std::string what = route.name + " split norm " + std::to_string(n) + "x" + std::to_string(first) +
                           "+" + std::to_string(width - first);
  const ops::NormSpec spec{NormKind::kRms, 1e-5, unit_offset};
  const at::Tensor x = random({n, width}, type), weight = random({width}, type),
                   dy = random({n, width}, type);
  const at::Tensor wide_x = leaf(x), wide_weight = leaf(weight);
  const at::Tensor expected = norm_of(spec, wide_x, wide_weight, {});
  expected.backward(wide(dy));
  struct Part {
    at::Tensor x, weight, dy, squares, products;
    int64_t begin;
  };
  std::vector<Part> parts;
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, first}, {first, width - first}}) {
    const auto sums = [&] { return poisoned({n}, at::kFloat); };
    parts.push_back({strided(x.narrow(1, begin, count)), weight.narrow(0, begin, count),
                     strided(dy.narrow(1, begin, count)), sums(), sums(), begin});
    const Part& part = parts.back();
    route.split_norm_squares(part.x, part.squares);
    route.split_norm_products(spec, part.dy, part.x, part.weight, part.products);
  }
  const at::Tensor squares = parts[0].squares + parts[1].squares;
  const at::Tensor products = parts[0].products + parts[1].products;
  for (const Part& part : parts) {
    const int64_t count = part.x.size(1);
    const auto own = [&](const at::Tensor& t) { return t.narrow(-1, part.begin, count); };
    const at::Tensor y = strided(part.x);
    route.split_norm_forward(spec, y, part.weight, squares, width, y);
    check_near(y, own(expected).detach(), tolerance(type), what + " y in place");
    const at::Tensor dx = strided(part.dy), dweight = at::full({count}, 0.5, at::kFloat);
    route.split_norm_backward(spec, dx, part.x, part.weight, squares, products, width, dx, dweight);
    check_near(dx, own(wide_x.grad()), tolerance(type), what + " dx in place");
    check_near(dweight - 0.5, own(wide_weight.grad()), 10 * kFloatTolerance, what + " dweight");
    const at::Tensor apart = strided(poisoned({n, count}, type));
    route.split_norm_backward(spec, part.dy, part.x, part.weight, squares, products, width, apart, {});
    CHECK(apart.equal(dx));
  }
}

TEST(norms_of_rows_in_parts_match_float64_autograd) {
  at::manual_seed(2);
  for_each_route([](const Route& route, at::ScalarType type) {
    for (const int64_t width : {2, 7, 48, 513}) {
      for (const int64_t n : {1, 3, 128}) {
        check_split_norm(route, type, false, n, width, width / 2);
        check_split_norm(route, type, true, n, width, 1);
      }
    }
  });
}

}  // namespace

TEST_MAIN()
