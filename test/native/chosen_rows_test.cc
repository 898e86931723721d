// Rows picked by index against double precision: odd widths, strides, repeated rows, no rows.
#include "kernels/chosen_rows.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "check.h"

using namespace troupe;

namespace {

struct Case {
  int64_t rows, cols, picked;
  at::ScalarType dtype;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t cols : {1, 15, 16, 257, 1024}) all.push_back({7, cols, 11, dtype});
    all.push_back({1, 33, 3, dtype});
    all.push_back({5, 40, 0, dtype});
  }
  return all;
}

at::Tensor wide(const at::Tensor& x) {
  return x.to(at::kDouble);
}

// Rows at a distance larger than they are wide.
at::Tensor strided(const Case& c, int64_t rows) {
  return at::randn({rows, c.cols + 3}).to(c.dtype).narrow(1, 1, c.cols);
}

// Within the rounding of the result and of float32 sums of `terms` terms.
void check_near(const at::Tensor& got, const at::Tensor& expected, int64_t terms, const char* what) {
  const double unit = got.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0x1p-24;
  const double limit = unit * 4 + 0x1p-24 * 4 * static_cast<double>(terms);
  const double error =
      expected.numel() == 0 ? 0 : ((wide(got) - expected).abs() / (expected.abs() + 1)).max().item<double>();
  test::report(std::isfinite(error) && error <= limit, __FILE__, __LINE__,
               std::string(what) + ": error " + std::to_string(error));
}

}  // namespace

TEST(rows_are_picked_scaled_and_added_up) {
  at::manual_seed(3);
  for (const Case& c : cases()) {
    const at::Tensor source = strided(c, c.rows), target = strided(c, c.picked);
    const at::Tensor index = at::randint(c.rows, {c.picked}, at::kLong);
    const at::Tensor scale = at::randn({c.picked});
    ops::gather_rows(source, index, {}, target);
    CHECK(target.equal(source.index_select(0, index)));
    ops::gather_rows(source, index, scale, target);
    check_near(target, wide(source.index_select(0, index)) * scale.unsqueeze(1), 1, "scaled");
    const at::Tensor result = strided(c, c.picked);
    const at::Tensor kept = target.clone();
    ops::scale_rows(target, scale, result);
    check_near(result, wide(kept) * scale.unsqueeze(1), 1, "scaled in place");

    const at::Tensor choices = at::randint(c.rows, {c.picked, 3}, at::kLong),
                     weights = at::randn({c.picked, 3});
    const at::Tensor terms = wide(source.index_select(0, choices.flatten())).view({c.picked, 3, c.cols});
    ops::sum_rows(source, choices, weights, target);
    check_near(target, (terms * weights.unsqueeze(2)).sum(1), 3, "weighted sum");
    ops::sum_rows(source, choices, {}, target);
    check_near(target, terms.sum(1), 3, "sum");

    const at::Tensor dots = at::empty({c.picked});
    ops::dot_rows(kept, result, dots);
    const at::Tensor products = wide(kept) * wide(result);
    check_near(dots / (products.abs().sum(1) + 1), products.sum(1) / (products.abs().sum(1) + 1), c.cols,
               "dots");
  }
}

TEST(a_row_gathered_without_a_scale_keeps_its_bits) {
  const float nan = std::numeric_limits<float>::signaling_NaN(),
              tiny = std::numeric_limits<float>::denorm_min();
  const at::Tensor source =
      at::tensor({nan, tiny, -0.0f, std::numeric_limits<float>::infinity()}).view({1, 4});
  const at::Tensor target = at::zeros({1, 4});
  ops::gather_rows(source, at::zeros({1}, at::kLong), {}, target);
  CHECK(target.view(at::kInt).equal(source.view(at::kInt)));
}

TEST(what_does_not_fit_is_refused) {
  const at::Tensor rows = at::zeros({4, 8}), index = at::zeros({2}, at::kLong), target = at::zeros({2, 8});
  CHECK_THROWS(ops::gather_rows(rows, index, {}, at::zeros({2, 7})), "2 rows of one width");
  CHECK_THROWS(ops::gather_rows(rows, index, {}, at::zeros({3, 8})), "2 rows of one width");
  CHECK_THROWS(ops::gather_rows(rows, index.to(at::kInt), {}, target), "an index");
  CHECK_THROWS(ops::gather_rows(rows, index, at::zeros({3}), target), "a scale");
  CHECK_THROWS(ops::gather_rows(rows.t().contiguous().t(), index, {}, target), "unit column strides");
  CHECK_THROWS(ops::dot_rows(target, target, at::zeros({4})), "sums");
}

TEST_MAIN()
