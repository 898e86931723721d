#include "kernels/gemm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "bfloat16_ways.h"
#include "check.h"
#include "kernels/cpu/code_gemm_kernels.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/isa.h"

#define TROUPE_ISA of_this_test
#define TROUPE_STEPS
#include "kernels/cpu/gemm_steps.h"

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

// Whatever registers it has, so that processors differ in no bit.
TEST(float32_is_summed_in_the_order_of_k_with_one_rounding_each) {
  constexpr int64_t kPass = 512;  // products that are summed before they are added to c
  at::manual_seed(5);
  for (const Shape& s : kShapes) {
    const at::Tensor a = at::randn({s.m, s.k}), b = at::randn({s.k, s.n}), c = at::randn({s.m, s.n});
    if (!ops::packs(b)) return;
    const at::Tensor expected = c.clone();
    const auto x = a.accessor<float, 2>(), y = b.accessor<float, 2>();
    auto sums = expected.accessor<float, 2>();
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        for (int64_t first = 0; first < s.k; first += kPass) {
          float sum = 0;
          for (int64_t k = first; k < std::min(s.k, first + kPass); ++k)
            sum = std::fma(x[i][k], y[k][j], sum);
          sums[i][j] += sum;
        }
      }
    }
    ops::gemm(a, ops::PackedMatrix::of(b, false), c, true);
    CHECK(at::equal(c, expected));
  }
}

TEST(an_addend_costs_no_copy_and_no_bit) {
  for_each_bfloat16_gemm([] {
    at::manual_seed(4);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const Shape& s : kShapes) {
        const at::Tensor a = at::randn({s.m, s.k}).to(type), weight = at::randn({s.n, s.k}).to(type);
        const at::Tensor residual = at::randn({s.m, s.n + 3}).to(type).narrow(1, 2, s.n);
        const at::Tensor bias = at::randn({s.n}).to(type).expand({s.m, s.n});
        for (const auto& packed :
             {ops::PackedMatrix::of(weight, true), ops::PackedMatrix::as_it_lies(weight, true),
              ops::PackedMatrix::quantized(weight, ops::Quantization::kInt8)}) {
          for (const at::Tensor& addend : {residual, bias}) {
            const at::Tensor before = addend.clone(), copied = addend.clone();
            ops::gemm(a, packed, copied, true);
            const at::Tensor c = at::full({s.m, s.n}, NAN, type);
            ops::gemm_add(a, packed, addend, c);
            CHECK(at::equal(c, copied) && at::equal(addend, before));
            ops::gemm_add(a, packed, c, c);
            ops::gemm(a, packed, copied, true);
            CHECK(at::equal(c, copied));
          }
          const at::Tensor c = at::full({s.m, s.n}, NAN, type), alone = at::empty_like(c);
          ops::gemm_add(a, packed, {}, c);
          ops::gemm(a, packed, alone, false);
          CHECK(at::equal(c, alone));
        }
      }
    }
  });
}

TEST(bfloat16_products_are_summed_in_float32_and_rounded_once) {
  for_each_bfloat16_gemm([] {
    CHECK(ops::packs(at::ones({8, 8}, at::kBFloat16)) == (kernels::bfloat16_gemm_kernels() != nullptr));
    at::manual_seed(5);
    // Half a unit in the last place, and the error of the sums themselves.
    const double once = std::ldexp(1.0, -8) * 1.001;
    for (const Shape& s : kShapes) {
      const at::Tensor a = at::randn({s.m, s.k}).to(at::kBFloat16),
                       b = at::randn({s.k, s.n}).to(at::kBFloat16);
      const at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      for (const bool transposed : {false, true}) {
        const ops::PackedMatrix packed =
            ops::PackedMatrix::of(transposed ? b.t().contiguous() : b, transposed);
        CHECK(packed.rows() == s.k && packed.cols() == s.n);
        const at::Tensor rounded = at::full({s.m, s.n}, NAN, at::kBFloat16);
        ops::gemm(a, packed, rounded, false);
        CHECK(error(rounded, expected) < once);
        const at::Tensor sum = at::ones({s.m, s.n}, at::kBFloat16);
        ops::gemm(a, packed, sum, true);
        CHECK(error(sum, expected + 1) < once);
        if (!ops::packs(a)) continue;
        const at::Tensor c = at::full({s.m, s.n}, NAN);
        ops::gemm(a, packed, c, false);
        CHECK(error(c, expected) < 3e-6);
        ops::gemm(a, packed, c, true);
        CHECK(error(c, expected * 2) < 3e-6);
      }
      const at::Tensor gradient = at::ones({s.m, s.n});
      ops::gemm_transposed(a.t().contiguous(), ops::PackedMatrix::of(b, false), gradient);
      CHECK(error(gradient, expected + 1) < (ops::packs(a) ? 3e-6 : once));
    }
  });
}

TEST(bfloat16_products_take_the_best_that_the_processor_has) {
#if defined(__x86_64__)
  const bool vectors = kernels::best_isa() == kernels::Isa::kAvx512 && __builtin_cpu_supports("avx512bf16");
  const bool matrices = vectors && __builtin_cpu_supports("amx-bf16");
#else
  const bool vectors = false, matrices = false;
#endif
  CHECK((kernels::bfloat16_vector_kernels() != nullptr) == vectors);
  // A system may keep the units to itself; it has none to give where the processor has none.
  CHECK(kernels::bfloat16_matrix_kernels() == nullptr || matrices);
  const auto* const best = kernels::bfloat16_matrix_kernels() != nullptr ? kernels::bfloat16_matrix_kernels()
                                                                         : kernels::bfloat16_vector_kernels();
  CHECK(kernels::bfloat16_gemm_kernels() == best);
}

TEST(bfloat16_views_begin_at_odd_places) {
  for_each_bfloat16_gemm([] {
    at::manual_seed(6);
    const at::Tensor a = at::randn({40, 91}).to(at::kBFloat16), b = at::randn({91, 121}).to(at::kBFloat16);
    const at::Tensor left = a.narrow(1, 7, 51), right = b.narrow(0, 5, 51).narrow(1, 3, 77);
    const at::Tensor expected = at::mm(left.to(at::kDouble), right.to(at::kDouble));
    const at::Tensor c = at::full({40, 201}, 7.0f, at::kBFloat16);
    ops::gemm(left, ops::PackedMatrix::of(right, false), c.narrow(1, 21, 77), false);
    CHECK(error(c.narrow(1, 21, 77), expected) < std::ldexp(1.0, -8));
    CHECK(at::equal(c.narrow(1, 0, 21), at::full({40, 21}, 7.0f, at::kBFloat16)));
    CHECK(at::equal(c.narrow(1, 98, 103), at::full({40, 103}, 7.0f, at::kBFloat16)));
    const at::Tensor turned = b.t().narrow(1, 5, 51).narrow(0, 3, 77).contiguous();
    const at::Tensor again = at::empty({40, 77}, at::kBFloat16);
    ops::gemm(left, ops::PackedMatrix::of(turned, true), again, false);
    CHECK(at::equal(again, c.narrow(1, 21, 77)));
  });
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
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = at::randn({kRowTile, 1500}).to(dtype), b = at::randn({300, 1500}).to(dtype);
    const ops::PackedMatrix packed = ops::PackedMatrix::of(b, true);
    const at::Tensor c = at::empty({kRowTile, 300}, dtype), moved = at::empty({kRowTile, 300}, dtype);
    parallel_items(1, [&](int64_t) { ops::gemm(a, packed, c, false); });
    parallel_items(1, [&](int64_t) { ops::gemm(a.roll(5, 0), packed, moved, false); });
    CHECK(at::equal(c.roll(5, 0), moved));
    if (!packed.packed()) continue;  // LibTorch's BLAS makes no promise about a part of the rows
    const at::Tensor few = at::empty({3, 300}, dtype);
    ops::gemm(a.narrow(0, 50, 3), packed, few, false);
    CHECK(at::equal(few, c.narrow(0, 50, 3)));
  }
}

// Of rows that share a matrix with others, of any length; and whatever matrix comes next.
TEST(a_product_has_the_same_bits_whatever_comes_from_memory_meanwhile) {
  at::manual_seed(6);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t rows : {1, 3, 17, 130}) {
      const at::Tensor wide = at::randn({rows, 1700}).to(dtype), a = wide.narrow(1, 100, 1500);
      const at::Tensor b = at::randn({700, 1500}).to(dtype);
      ops::PackedMatrix packed = ops::PackedMatrix::of(b, true);
      const at::Tensor alone = at::empty({rows, 700}, dtype), followed = at::empty({rows, 700}, dtype);
      ops::gemm(a, packed, alone, false);
      CHECK(error(alone, at::mm(a.to(at::kDouble), b.t().to(at::kDouble))) <
            (dtype == at::kFloat ? 3e-6 : 8e-3));
      for (const int64_t next : {1, 40, 3000}) {
        packed.precede(ops::PackedMatrix::of(at::randn({next, 70}).to(dtype), true));
        ops::gemm(a, packed, followed, false);
        CHECK(at::equal(alone, followed));
      }
    }
  }
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
  if (kernels::best_isa() >= kernels::Isa::kAvx2) CHECK(at::equal(results[0], results[1]));
  CHECK(error(results[1], results[0].to(at::kDouble)) < 1e-5);
}

namespace {

// What the codes of `weight` stand for, in double, from the definition alone.
at::Tensor dequantized(const at::Tensor& weight, ops::Quantization kind) {
  const bool int8 = kind == ops::Quantization::kInt8;
  const at::Tensor values = weight.to(at::kFloat), most = values.abs().amax(1, true);
  const at::Tensor scales = at::where(most == 0, at::ones_like(most), most / (int8 ? 127.0 : 448.0));
  const at::Tensor scaled = values / scales;
  const at::Tensor codes = int8 ? scaled.round() : scaled.to(at::kFloat8_e4m3fn).to(at::kFloat);
  return codes.to(at::kDouble) * scales;
}

}  // namespace

TEST(quantized_products_match_double) {
  at::manual_seed(8);
  for (const auto kind : {ops::Quantization::kInt8, ops::Quantization::kFp8}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool own : {true, false}) {
        for (const Shape& s : kShapes) {
          const at::Tensor a = at::randn({s.m, s.k}).to(dtype);
          at::Tensor weight = at::randn({s.n, s.k}).mul_(at::rand({s.n, 1}));
          weight.select(0, s.n / 2).zero_();
          weight = weight.to(dtype);
          at::Tensor known = dequantized(weight, kind);
          const double step =
              kind == ops::Quantization::kInt8 ? 0.5 / 127 : 16.0 / 448;  // of the largest of a row
          const at::Tensor most = weight.abs().amax(1, true).to(at::kDouble);
          CHECK(((known - weight.to(at::kDouble)).abs() <= most * step * 1.001).all().item<bool>());
          const auto matrix = ops::QuantizedMatrix::of(weight, kind, own);
          // LibTorch gets numbers that are rounded; ours are codes, and a row is rounded once, at the end.
          if (!matrix.packed()) known = known.to(at::kFloat).to(dtype).to(at::kDouble);
          const at::Tensor expected = at::mm(a.to(at::kDouble), known.t());
          const double bound = dtype == at::kFloat ? 3e-6 : std::ldexp(1.0, -8) * 1.001;
          const at::Tensor sums = at::full({s.m, s.n}, NAN, at::kFloat);
          matrix.multiply(a, sums, false);
          if (matrix.packed())
            CHECK((sums.to(at::kDouble) - expected).abs().max().item<double>() <=
                  3e-6 * expected.abs().max().item<double>());
          const at::Tensor c = at::full({s.m, s.n}, NAN, dtype);
          matrix.multiply(a, c, false);
          const double scale = expected.abs().max().item<double>() + 1e-30;
          const auto off = [&](const at::Tensor& e) {
            return ((c.to(at::kDouble) - e).abs().max() / scale).item<double>();
          };
          CHECK(off(expected) < bound);
          matrix.multiply(a, c, true);
          CHECK(off(expected * 2) < 3 * bound);
        }
      }
    }
  }
}

TEST(rows_of_quantized_products_do_not_depend_on_each_other) {
  at::manual_seed(9);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = at::randn({37, 300}).to(dtype), weight = at::randn({145, 300}).to(dtype);
    const auto matrix = ops::QuantizedMatrix::of(weight, ops::Quantization::kInt8);
    if (!matrix.packed()) continue;  // LibTorch's BLAS makes no promise about a part of the rows
    const at::Tensor all = at::empty({37, 145}, dtype);
    matrix.multiply(a, all, false);
    for (const auto& [begin, count] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {5, 2}, {7, 3}, {9, 5}, {3, 30}}) {
      const at::Tensor part = at::empty({count, 145}, dtype);
      matrix.multiply(a.narrow(0, begin, count), part, false);
      CHECK(at::equal(part, all.narrow(0, begin, count)));
    }
  }
}

// Every way in which a processor turns codes into numbers, in registers and in memory.
TEST(codes_are_what_they_stand_for) {
  constexpr int64_t kGroups = 64, kVectors = 3, kBytes = kGroups * kVectors * kernels::kCodeBytes;
  std::vector<uint8_t> codes(kBytes);
  for (int64_t i = 0; i < kBytes; ++i) codes[static_cast<size_t>(i)] = static_cast<uint8_t>(i * 37 + i / 256);
  kernels::CodeTable table{};
  for (int i = 0; i < 128; ++i) {
    table.values[i] = static_cast<uint16_t>(0x3f00 + 3 * i);
    table.low[i] = static_cast<uint8_t>(table.values[i]);
    table.high[i] = static_cast<uint8_t>(table.values[i] >> 8);
  }
  constexpr int64_t kWidth = kVectors * kernels::kGemmLanes;
  for (const kernels::CodeGemmKernels* own : kernels::all_code_gemm_kernels()) {
    std::vector<uint32_t> floats(kGroups * kernels::kCodeSteps * kWidth), pairs(floats.size() / 2);
    own->float_words(kGroups, codes.data(), table, kVectors, floats.data());
    own->pair_words(kGroups, codes.data(), table, kVectors, pairs.data());
    bool same = true;
    for (int64_t k = 0; k < kGroups * kernels::kCodeSteps; ++k) {
      for (int64_t c = 0; c < kWidth; ++c) {
        const int64_t group = k / kernels::kCodeSteps * kVectors + c / kernels::kGemmLanes;
        const uint8_t code =
            codes[static_cast<size_t>(group * kernels::kCodeBytes +
                                      kernels::code_place(k % kernels::kCodeSteps, c % kernels::kGemmLanes))];
        const uint32_t value = table.values[code & 0x7f] | (code & 0x80u) << 8;
        same = same && floats[static_cast<size_t>(k * kWidth + c)] == value << 16;
        same = same && (pairs[static_cast<size_t>(k / 2 * kWidth + c)] >> (16 * (k % 2)) & 0xffff) == value;
      }
    }
    CHECK(same);
    // Tiles give the bits of the tiles over those words.
    const std::vector<uint32_t> ones(kGroups * kernels::kCodeSteps * kernels::kGemmRows, 0x3f803f80);
    for (int64_t rows = 1; rows <= kernels::kCodeRows; ++rows) {
      std::vector<float> expected(static_cast<size_t>(rows * kWidth), 2), found = expected;
      kernels::gemm_kernels().tile({.steps = kGroups * kernels::kCodeSteps,
                                    .a = ones.data(),
                                    .b = floats.data(),
                                    .vectors = kVectors,
                                    .c = expected.data(),
                                    .ldc = kWidth,
                                    .rows = rows,
                                    .addend = expected.data(),
                                    .addend_ld = kWidth});
      own->float_tile(kGroups, ones.data(), codes.data(), table, kVectors, found.data(), kWidth, rows, true);
      CHECK(expected == found);
      if (kernels::bfloat16_vector_kernels() == nullptr) continue;
      kernels::bfloat16_vector_kernels()->tile({.steps = kGroups * kernels::kCodeSteps / 2,
                                                .a = ones.data(),
                                                .b = pairs.data(),
                                                .vectors = kVectors,
                                                .c = expected.data(),
                                                .ldc = kWidth,
                                                .rows = rows});
      own->pair_tile(kGroups, ones.data(), codes.data(), table, kVectors, found.data(), kWidth, rows, false);
      CHECK(expected == found);
    }
  }
}

// What a tile asks for: all lines of `ahead` but what whole numbers leave over, none twice, none beyond.
TEST(a_tile_asks_for_what_is_ahead) {
  for (const int64_t steps : {1, 7, 512}) {
    for (const int64_t lines : {0, 1, 3, 6, 7, 8, 200, 511, 512, 513, 1024, 1025, 1535, 1536}) {
      if (lines > 3 * steps) continue;
      const kernels::Ahead ahead = {nullptr, lines};
      const kernels::of_this_test::AheadPlan plan(ahead, steps);
      const int64_t asked = plan.at_once * plan.with_lines + plan.lines;
      CHECK(asked <= lines && lines - asked < 3);
      CHECK(plan.with_lines + plan.lines * plan.every <= steps);
      CHECK(plan.at_once == 0 || (plan.at_once > 1 && plan.at_once <= 3 && plan.lines == 0));
      CHECK(plan.lines == 0 || plan.every > 0);
      int64_t done = 0;
      kernels::of_this_test::over_steps(steps, ahead, [&done] { ++done; });
      CHECK(done == steps);
    }
  }
}

TEST_MAIN()
