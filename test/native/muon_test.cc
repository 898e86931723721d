#include "optim/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/counting_allocator.h"
#include "check.h"

// Directions of Muon against singular value decompositions in float64.

using namespace troupe;

namespace {

struct Polynomial {
  double a, b, c;
};

// What an iteration makes of one singular value: the matrix's singular vectors stay.
double through(double value, const std::vector<Polynomial>& polynomials) {
  for (const auto& [a, b, c] : polynomials)
    value = a * value + b * std::pow(value, 3) + c * std::pow(value, 5);
  return value;
}

at::Tensor expected(const at::Tensor& matrix, const std::vector<Polynomial>& polynomials) {
  const at::Tensor wide = matrix.to(at::kDouble);
  auto [u, s, vt] = at::linalg_svd(wide / wide.norm(), /*full_matrices=*/false);
  for (int64_t i = 0; i < s.numel(); ++i) s[i].fill_(through(s[i].item<double>(), polynomials));
  return at::mm(u * s, vt);
}

const std::vector<Polynomial> kQuintic{{4.0848, -6.8946, 2.9270},
                                       {3.9505, -6.3029, 2.6377},
                                       {3.7418, -5.5913, 2.3037},
                                       {2.8769, -3.1427, 1.2046},
                                       {2.8366, -3.0525, 1.2012}};

MuonOptions in_float32() {
  MuonOptions options;
  options.bfloat16 = false;
  return options;
}

// What the iteration of each set makes of singular values.
MuonOptions with(const char* name, bool bfloat16) {
  MuonOptions options;
  options.bfloat16 = bfloat16;
  options.coefficients = parse_newton_schulz(name);
  options.iterations = name == std::string("deepseekv4") ? 10 : name == std::string("aol") ? 4 : 5;
  return options;
}
constexpr std::array kSets{"simple", "quintic", "polar_express", "cans", "aol", "deepseekv4"};

// [rows, columns] with these singular values.
at::Tensor with_values(int64_t rows, int64_t columns, const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  const auto turned = [&](int64_t size) {
    return std::get<0>(at::linalg_qr(at::randn({size, count}, at::kDouble)));
  };
  return at::mm(turned(rows) * at::tensor(values, at::kDouble), turned(columns).t()).to(at::kFloat);
}

// The largest difference of an element, in root mean squares of all.
double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).abs().max() / wide.square().mean().sqrt()).item<double>();
}

}  // namespace

TEST(singular_values_go_through_the_polynomials) {
  at::manual_seed(1);
  for (const auto& [rows, columns] :
       std::vector<std::array<int64_t, 2>>{{24, 40}, {40, 24}, {33, 33}, {1, 17}, {17, 1}}) {
    const at::Tensor matrix = at::randn({rows, columns});
    CHECK(distance(orthogonalized(matrix, in_float32()), expected(matrix, kQuintic)) < 1e-4);
    // Eight bits are kept of every product.
    CHECK(distance(orthogonalized(matrix, {}), expected(matrix, kQuintic)) < 0.2);
    CHECK(orthogonalized(matrix.t().contiguous().t(), {}).equal(orthogonalized(matrix, {})));
  }
}

// Wide enough that the halves of symmetric products are found apart.
TEST(wide_matrices) {
  at::manual_seed(5);
  for (const auto& [rows, columns] : std::vector<std::array<int64_t, 2>>{{531, 600}, {1301, 1030}}) {
    const at::Tensor matrix = at::randn({rows, columns});
    CHECK(distance(orthogonalized(matrix, in_float32()), expected(matrix, kQuintic)) < 1e-3);
  }
}

TEST(singular_values_come_near_one) {
  at::manual_seed(2);
  const at::Tensor matrix = at::randn({48, 64});
  for (const char* name : kSets) {
    const at::Tensor s = at::linalg_svdvals(orthogonalized(matrix, with(name, false)).to(at::kDouble));
    CHECK(s.min().item<double>() > 0.6 && s.max().item<double>() < 1.3);
  }
}

// Of a matrix of low rank they begin near one. None leaves the interval that a set is made for, whatever is
// rounded, and no direction is reversed.
TEST(singular_values_that_begin_large_come_near_one) {
  at::manual_seed(6);
  std::vector<at::Tensor> matrices{at::randn({1, 64}), at::randn({8, 1}), at::ones({1, 50}),
                                   at::ones({3, 5})};
  for (size_t rank = 1; rank <= 12; ++rank)
    matrices.push_back(with_values(24, 40, std::vector<double>(rank, 1)));
  for (double largest = 0.3; largest < 1; largest += 0.01) {
    std::vector<double> values(12, std::sqrt((1 - largest * largest) / 11));
    values[0] = largest;
    matrices.push_back(with_values(40, 24, values));
  }
  for (const char* name : kSets) {
    for (const bool bfloat16 : {false, true}) {
      double least = 1, most = 1;
      for (const at::Tensor& matrix : matrices) {
        const auto [u, s, vt] = at::linalg_svd(matrix.to(at::kDouble), /*full_matrices=*/false);
        const at::Tensor made =
            at::mm(at::mm(u.t(), orthogonalized(matrix, with(name, bfloat16)).to(at::kDouble)), vt.t());
        // Those that begin small may be on their way.
        for (int64_t i = 0; i < s.numel(); ++i) {
          if (s[i].item<double>() < 0.05 * matrix.norm().item<double>()) continue;
          const double value = made[i][i].item<double>();
          least = std::isnan(value) ? value : std::min(least, value);
          most = std::isnan(value) ? value : std::max(most, value);
        }
      }
      const bool near = least > 0.6 && most < 1.3;
      if (!near) std::printf("%s, bfloat16 %d: %g to %g\n", name, bfloat16, least, most);
      CHECK(near);
    }
  }
}

TEST(sets_of_coefficients_begin_again_or_repeat_their_last) {
  at::manual_seed(3);
  const at::Tensor matrix = at::randn({9, 13});
  MuonOptions options = in_float32();
  options.iterations = 10;
  std::vector<Polynomial> again = kQuintic;
  again.insert(again.end(), kQuintic.begin(), kQuintic.end());
  CHECK(distance(orthogonalized(matrix, options), expected(matrix, again)) < 1e-3);

  options.coefficients = NewtonSchulz::kCans;
  options.iterations = 7;
  // All but the last leave a margin of 2 %.
  const auto smaller = [](Polynomial p) {
    return Polynomial{p.a / 1.02, p.b / std::pow(1.02, 3), p.c / std::pow(1.02, 5)};
  };
  const Polynomial last{2.2737, -1.6447, 0.4162};
  const std::vector<Polynomial> repeated{smaller({8.4703, -25.1081, 18.6293}),
                                         smaller({4.1828, -3.1087, 0.5806}),
                                         smaller({3.9619, -2.9541, 0.5630}),
                                         smaller({3.2866, -2.4647, 0.5074}),
                                         last,
                                         last,
                                         last};
  CHECK(distance(orthogonalized(matrix, options), expected(matrix, repeated)) < 1e-3);
}

TEST(the_size_of_a_matrix_plays_no_part) {
  at::manual_seed(4);
  const at::Tensor matrix = at::randn({12, 20});
  const at::Tensor direction = orthogonalized(matrix, in_float32());
  for (const double size : {1e-25, 1e-12, 1e12})
    CHECK(distance(orthogonalized(matrix * size, in_float32()), direction) < 1e-5);
  const at::Tensor none = at::zeros({12, 20});
  CHECK(orthogonalized(none, in_float32()).equal(none) && orthogonalized(none, {}).equal(none));
}

// Of the longer one they would take 8 MB.
TEST(products_are_of_the_shorter_side) {
  install_counting_allocator(at::kMeta);
  for (const auto& [rows, columns] : std::vector<std::array<int64_t, 2>>{{8, 2000}, {2000, 8}}) {
    const at::Tensor matrix = at::empty({rows, columns}, at::device(at::kMeta).dtype(at::kFloat));
    const auto count = std::make_shared<ByteCount>();
    const CountAllocations scope(count, at::kMeta);
    orthogonalized(matrix, {});
    CHECK(count->peak() > 2 * 16'000 && count->peak() < 500'000);
  }
}

TEST(scales_are_those_of_the_shape) {
  MuonOptions options;
  options.extra_scale = 0.2;
  CHECK_CLOSE(muon_scale(100, 25, options), 0.2 * 10, 1e-12);
  CHECK_CLOSE(muon_scale(25, 100, options), 0.2 * 10, 1e-12);
  options.scale = parse_muon_scale("unit_rms_norm");
  CHECK_CLOSE(muon_scale(100, 25, options), 0.2 * 2, 1e-12);
  CHECK_CLOSE(muon_scale(25, 100, options), 0.2 / 2, 1e-12);
  options.scale = parse_muon_scale("shape_scaling");
  CHECK_CLOSE(muon_scale(100, 25, options), 0.2 * 2, 1e-12);
  CHECK_CLOSE(muon_scale(25, 100, options), 0.2, 1e-12);
}

TEST(options_that_make_no_sense_are_refused) {
  const auto changed = [](const auto& change) {
    MuonOptions options;
    change(options);
    return options;
  };
  CHECK_THROWS(validate(changed([](MuonOptions& o) { o.momentum = 1; })),
               "momentum of Muon from 0 and below 1");
  CHECK_THROWS(validate(changed([](MuonOptions& o) { o.iterations = 0; })), "at least one iteration of Muon");
  CHECK_THROWS(validate(changed([](MuonOptions& o) { o.iterations = 6; })), "at most 5 iterations of Muon");
  validate(changed([](MuonOptions& o) { o.iterations = 10; }));
  CHECK_THROWS(validate(changed([](MuonOptions& o) {
                 o.coefficients = NewtonSchulz::kAol;
                 o.iterations = 8;
               })),
               "at most 4 iterations of Muon: the first polynomial of aol");
  CHECK_THROWS(validate(changed([](MuonOptions& o) { o.extra_scale = 0; })), "extra scale of Muon above 0");
  CHECK_THROWS(parse_newton_schulz("cubic"), "known: simple, quintic, polar_express, cans, aol, deepseekv4");
  CHECK_THROWS(parse_muon_scale("rms"), "known: spectral, unit_rms_norm, shape_scaling");
}

TEST_MAIN()
