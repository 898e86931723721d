#include "kernels/gemm.h"

#include "check.h"
#include "core/parallel.h"
#include "kernels/cpu/isa.h"

using namespace troupe;

namespace {

double error(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

struct Shape {
  int64_t m, k, n;
};
const std::vector<Shape> kShapes = {{1, 1, 1},     {8, 512, 48},    {128, 64, 96},   {7, 513, 47},
                                    {130, 31, 17}, {64, 1408, 512}, {3, 1025, 1000}, {129, 100, 145}};

}  // namespace

TEST(products_match_double_and_overwrite_their_output) {
  at::manual_seed(1);
  for (const Shape& s : kShapes) {
    const at::Tensor a = at::randn({s.m, s.k}), b = at::randn({s.k, s.n});
    const at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    for (const bool transposed : {false, true}) {
      const ops::PackedMatrix packed = ops::PackedMatrix::of(transposed ? b.t().contiguous() : b, transposed);
      CHECK(packed.rows() == s.k && packed.cols() == s.n);
      const at::Tensor c = at::full({s.m, s.n}, NAN);
      ops::gemm(a, packed, c, false);
      CHECK(error(c, expected) < 3e-6);
      ops::gemm(a, packed, c, true);
      CHECK(error(c, expected * 2) < 3e-6);
    }
    const at::Tensor sum = at::ones({s.m, s.n});
    ops::gemm_transposed(a.t().contiguous(), ops::PackedMatrix::of(b, false), sum);
    CHECK(error(sum, expected + 1) < 3e-6);
  }
}

TEST(views_keep_what_lies_around_them) {
  at::manual_seed(2);
  const at::Tensor a = at::randn({40, 90}), b = at::randn({90, 120}), c = at::full({40, 200}, 7.0f);
  ops::gemm(a.narrow(1, 10, 50), ops::PackedMatrix::of(b.narrow(0, 5, 50).narrow(1, 3, 77), false),
            c.narrow(1, 20, 77), false);
  const at::Tensor expected =
      at::mm(a.narrow(1, 10, 50).to(at::kDouble), b.narrow(0, 5, 50).narrow(1, 3, 77).to(at::kDouble));
  CHECK(error(c.narrow(1, 20, 77), expected) < 3e-6);
  CHECK(at::equal(c.narrow(1, 0, 20), at::full({40, 20}, 7.0f)));
  CHECK(at::equal(c.narrow(1, 97, 103), at::full({40, 103}, 7.0f)));
}

TEST(a_row_has_the_same_bits_in_every_tile_of_one_shape) {
  at::manual_seed(3);
  const at::Tensor a = at::randn({kRowTile, 700}), b = at::randn({300, 700});
  const ops::PackedMatrix packed = ops::PackedMatrix::of(b, true);
  const at::Tensor c = at::empty({kRowTile, 300}), moved = at::empty({kRowTile, 300});
  parallel_items(1, [&](int64_t) { ops::gemm(a, packed, c, false); });
  parallel_items(1, [&](int64_t) { ops::gemm(a.roll(5, 0), packed, moved, false); });
  CHECK(at::equal(c.roll(5, 0), moved));
}

TEST(weight_gradients_do_not_depend_on_the_number_of_threads) {
  at::manual_seed(4);
  const at::Tensor dy = at::randn({333, 300}), x = at::randn({333, 600});
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int count : {1, 2}) {
    at::set_num_threads(count);
    results.push_back(at::zeros({300, 600}));
    ops::gemm_transposed(dy, ops::PackedMatrix::of(x, false), results.back());
  }
  at::set_num_threads(threads);
  // LibTorch's BLAS makes no such promise.
  if (kernels::best_isa() == kernels::Isa::kAvx512) CHECK(at::equal(results[0], results[1]));
  CHECK(error(results[1], results[0].to(at::kDouble)) < 1e-5);
}

TEST_MAIN()
