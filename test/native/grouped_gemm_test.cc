// Products by group against one product per group in double precision, on the CPU and, where there is one, on
// a GPU.
#include "kernels/grouped_gemm.h"

#include <ATen/ATen.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "check.h"
#include "kernels/device_ops.h"

using namespace troupe;

namespace {

struct Case {
  std::vector<int64_t> rows;  // of each group
  int64_t depth, cols;
};

// Groups without rows, with one, with more than a tile; sizes that are multiples of nothing; many groups.
std::vector<Case> cases() {
  std::vector<Case> all = {{{5}, 24, 40},
                           {{0, 7, 0, 130, 1}, 64, 136},
                           {{300, 0, 2}, 37, 131},
                           {{3, 200, 64}, 1, 5},
                           {{0, 0}, 16, 16}};
  std::vector<int64_t> many;
  for (int64_t group = 0; group < 70; ++group) many.push_back(group * 13 % 9);
  all.push_back({many, 48, 72});
  return all;
}

at::Tensor wide(const at::Tensor& x) {
  return x.to(at::kCPU, at::kDouble);
}

void check_near(const at::Tensor& got, const at::Tensor& expected, double limit, const char* what) {
  const double scale = expected.numel() > 0 ? std::max(1.0, expected.abs().max().item<double>()) : 1;
  const double error = expected.numel() > 0 ? (wide(got) - expected).abs().max().item<double>() / scale : 0;
  test::report(std::isfinite(error) && error <= limit, __FILE__, __LINE__,
               std::string(what) + ": error " + std::to_string(error));
}

// Rows behind those of the last group.
constexpr int64_t kBehind = 3;

struct Operands {
  at::Tensor starts, x, dy, weights;  // weights [E, N, K], at distances larger than they are
  std::vector<at::Tensor> matrices;

  Operands(const Case& c, at::Device device, at::ScalarType dtype) {
    std::vector<int32_t> bounds{0};
    for (const int64_t rows : c.rows) bounds.push_back(bounds.back() + static_cast<int32_t>(rows));
    starts = at::tensor(bounds, at::kInt).to(device);
    const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(device, dtype); };
    x = random({bounds.back() + kBehind, c.depth});
    dy = random({bounds.back() + kBehind, c.cols});
    const auto groups = static_cast<int64_t>(c.rows.size());
    const at::Tensor flat = random({groups, c.cols * c.depth + 24});
    for (int64_t group = 0; group < groups; ++group)
      matrices.push_back(flat.select(0, group).narrow(0, 8, c.cols * c.depth).view({c.cols, c.depth}));
    weights = ops::stacked(matrices);
  }
  at::Tensor own(const at::Tensor& rows, size_t group) const {
    const at::Tensor bounds = starts.cpu();
    const auto at = [&](size_t i) { return static_cast<int64_t>(bounds.const_data_ptr<int32_t>()[i]); };
    return wide(rows.narrow(0, at(group), at(group + 1) - at(group)));
  }
};

void compare(at::Device device) {
  at::manual_seed(5);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double limit = dtype == at::kFloat ? 5e-6 : 1e-2;
    for (const Case& c : cases()) {
      const Operands o(c, device, dtype);
      std::vector<at::Tensor> forward, backward;
      const at::Tensor out =
          at::ones({static_cast<int64_t>(c.rows.size()), c.cols, c.depth}, o.x.options().dtype(at::kFloat));
      ops::grouped_gemm_transposed(o.dy, o.x, o.starts, out);
      for (size_t group = 0; group < c.rows.size(); ++group) {
        forward.push_back(at::mm(o.own(o.x, group), wide(o.matrices[group]).t()));
        backward.push_back(at::mm(o.own(o.dy, group), wide(o.matrices[group])));
        const at::Tensor gradient = at::mm(o.own(o.dy, group).t(), o.own(o.x, group)) + 1;
        check_near(out.select(0, static_cast<int64_t>(group)), gradient, 5e-6, "gradient of weights");
      }
      const at::Tensor y = ops::grouped_gemm(o.x, o.weights.transpose(1, 2), o.starts);
      const at::Tensor dx = ops::grouped_gemm(o.dy, o.weights, o.starts);
      CHECK(y.scalar_type() == dtype && dx.scalar_type() == dtype);
      const int64_t rows = o.x.size(0) - kBehind;
      check_near(y.narrow(0, 0, rows), at::cat(forward), limit, "rows by transposed weights");
      check_near(dx.narrow(0, 0, rows), at::cat(backward), limit, "rows by weights");
    }
  }
}

}  // namespace

TEST(each_row_meets_the_matrix_of_its_group) {
  compare(at::kCPU);
}

TEST(matrices_are_stacked_where_they_lie_at_equal_distances) {
  const at::Tensor flat = at::arange(100, at::kFloat);
  const auto matrix = [&](int64_t begin) { return flat.narrow(0, begin, 6).view({2, 3}); };
  const at::Tensor stack = ops::stacked({matrix(4), matrix(14), matrix(24)});
  CHECK(stack.sizes() == at::IntArrayRef({3, 2, 3}) && stack.is_alias_of(flat));
  CHECK(stack.select(0, 2).equal(matrix(24)));
  CHECK(ops::stacked({matrix(4)}).sizes() == at::IntArrayRef({1, 2, 3}));
  CHECK(!ops::stacked({matrix(4), matrix(14), matrix(25)}).defined());
  CHECK(!ops::stacked({matrix(4), matrix(14).clone()}).defined());
  CHECK(!ops::stacked({at::Tensor(), at::Tensor()}).defined());
}

// On a machine without a GPU, or in a build without CUDA, there is nothing to compare.
TEST(gpu_kernels_equal_the_products) {
  if (kernels::device_ops() == nullptr || !at::hasCUDA()) {
    std::printf("  no GPU: not compared\n");
    return;
  }
  compare(at::kCUDA);
}

TEST_MAIN()
