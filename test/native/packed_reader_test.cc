// Packed values of files against LibTorch's own conversions and products in float64.
#include "checkpoint/packed_reader.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "check.h"
#include "checkpoint/tensor_file.h"

using namespace troupe;

namespace {

constexpr int64_t kBefore = 3;  // rows of the parameter before the slice
constexpr int64_t kHeader = 6;  // bytes before the values

void write(const std::string& file, const at::Tensor& values) {
  std::FILE* out = std::fopen(file.c_str(), "w");
  std::fputs("header", out);
  const at::Tensor bytes = values.contiguous();
  CHECK(std::fwrite(bytes.const_data_ptr(), 1, bytes.nbytes(), out) == bytes.nbytes());
  std::fclose(out);
}

struct Packed {
  std::string dtype;
  at::Tensor codes;  // [rows, bytes]
  at::Tensor scales;
  std::string scale_dtype;
  std::vector<int64_t> shape;  // in the file
  std::vector<int64_t> block;
  bool transpose = false;
};

// Files of codes and of scales; rows [begin, end) of what they are of a parameter are asked for.
at::Tensor read(const Packed& packed, int64_t begin, int64_t end) {
  const std::string path = "/tmp/troupe_packed_" + std::to_string(::getpid());
  write(path, packed.codes);
  write(path + "s", packed.scales);
  const int64_t rows = packed.shape[packed.transpose ? 1 : 0];
  const int64_t columns = packed.shape[packed.transpose ? 0 : 1];
  TensorFile file{path, "", 0, {}};
  file.tensors.push_back({"weight",
                          kBefore,
                          rows,
                          packed.transpose,
                          "the weight",
                          kHeader,
                          packed.dtype,
                          {path + "s", kHeader, packed.scale_dtype, packed.block[0], packed.block[1]}});
  at::Tensor found;
  int64_t row = -1;
  const auto remove = [&] {
    ::unlink(path.c_str());
    ::unlink((path + "s").c_str());
  };
  try {
    read_tensor_file(
        file,
        [&](const std::string&) {
          return std::vector<int64_t>{rows + kBefore, columns};
        },
        [&](const TensorSlice&) {
          return RowRange{begin + kBefore, end + kBefore};
        },
        [&](const TensorSlice& slice, const at::Tensor& all) {
          found = all.clone();
          row = slice.row;
        });
  } catch (...) {
    remove();
    throw;
  }
  remove();
  // What is transposed is read whole.
  CHECK(row == (packed.transpose ? 0 : begin) + kBefore);
  CHECK(found.size(0) == (packed.transpose ? rows : end - begin) && found.size(1) == columns);
  return found;
}

Packed mxfp4(const at::Tensor& blocks, const at::Tensor& scales) {
  return {"MXFP4", blocks, scales, "F8_E8M0", {blocks.size(0), 2 * blocks.size(1)}, {1, 32}};
}

// Bit by bit: zeros have signs.
bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.equal(b) && at::signbit(a).equal(at::signbit(b));
}

// A scale for each value, in float32.
at::Tensor spread(const at::Tensor& scales, const std::vector<int64_t>& block, at::IntArrayRef shape) {
  return scales.to(at::kFloat)
      .repeat_interleave(block[0], 0)
      .repeat_interleave(block[1], 1)
      .slice(0, 0, shape[0])
      .slice(1, 0, shape[1]);
}

at::Tensor numbers(const at::Tensor& codes) {
  return codes.view(at::kFloat8_e4m3fn).to(at::kFloat);
}

// Every code but the two of NaN, many times.
at::Tensor all_codes(int64_t rows, int64_t columns) {
  const at::Tensor all = at::randint(0, 254, {rows, columns}, at::kLong);
  return (all + (all >= 127).to(at::kLong)).to(at::kByte);
}

}  // namespace

TEST(mxfp4_is_exact_in_whatever_rows) {
  at::manual_seed(1);
  const at::Tensor blocks = at::randint(0, 256, {256, 32}, at::kByte);
  // Every scale but NaN, and but those with which values overflow.
  const at::Tensor scales = at::arange(512, at::kInt).remainder(252).to(at::kByte).view({256, 2});
  const at::Tensor codes =
      at::stack({blocks.bitwise_and(15), blocks.bitwise_right_shift(4)}, -1).view({256, 64});
  const at::Tensor magnitudes = at::tensor({0., .5, 1., 1.5, 2., 3., 4., 6.}, at::kDouble);
  const at::Tensor signs = codes.to(at::kInt).ge(8).to(at::kDouble) * -2 + 1;
  const at::Tensor powers = at::exp2(scales.to(at::kDouble) - 127).repeat_interleave(32, 1);
  const at::Tensor expected =
      magnitudes.index_select(0, codes.to(at::kLong).remainder(8).view({-1})).view({256, 64}) * signs *
      powers;
  const at::Tensor whole = read(mxfp4(blocks, scales), 0, 256);
  CHECK(whole.scalar_type() == at::kBFloat16 && whole.to(at::kDouble).equal(expected));
  CHECK(at::signbit(whole).equal(at::signbit(expected)));
  CHECK(same(read(mxfp4(blocks, scales), 17, 20), whole.narrow(0, 17, 3)));
}

TEST(mxfp4_that_is_no_number) {
  const at::Tensor blocks = at::full({4, 32}, 0x77, at::kByte);  // 6
  const at::Tensor scales = at::full({4, 2}, 127, at::kByte);
  scales[2][1] = 255;
  CHECK_THROWS(read(mxfp4(blocks, scales), 0, 4), "tensor the weight: its scales in /tmp/troupe_packed_");
  CHECK_THROWS(read(mxfp4(blocks, scales), 1, 3), "are NaN or infinity in 1 of 4 blocks");
  CHECK(read(mxfp4(blocks, scales), 0, 2).eq(6).all().item<bool>());
  scales[2][1] = 254;  // 6 * 2^127
  CHECK_THROWS(read(mxfp4(blocks, scales), 0, 4), "holds NaN or infinity in 32 of its 256 values");
}

TEST(fp8_in_blocks_wherever_rows_begin_and_end) {
  at::manual_seed(2);
  const at::Tensor codes =
      all_codes(700, 450);  // several pieces of what a thread reads, and blocks cut short
  const at::Tensor scales = at::rand({6, 4}, at::kFloat) * 1e-3 + 1e-5;
  const Packed packed{"F8_E4M3", codes, scales, "F32", {700, 450}, {128, 128}};
  const at::Tensor expected = numbers(codes) * spread(scales, {128, 128}, {700, 450});
  CHECK(same(read(packed, 0, 700), expected));
  for (const auto& [begin, end] : {std::pair{0, 1}, {127, 129}, {5, 128}, {128, 256}, {300, 699}, {699, 700}})
    CHECK(same(read(packed, begin, end), expected.narrow(0, begin, end - begin)));
}

TEST(fp8_with_scales_of_other_sizes_and_dtypes) {
  at::manual_seed(3);
  const at::Tensor codes = all_codes(20, 33);
  const at::Tensor values = numbers(codes);
  for (const auto& [dtype, type] :
       {std::pair{"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F16", at::kHalf}}) {
    const auto scales = [&](int64_t rows, int64_t columns) {
      return (at::rand({rows, columns}) + 0.1).to(type);
    };
    for (const std::vector<int64_t> block :
         {std::vector<int64_t>{7, 5}, {1, 33}, {20, 33}, {1, 1}, {64, 64}}) {
      const at::Tensor grid = scales((19 + block[0]) / block[0], (32 + block[1]) / block[1]);
      const Packed packed{"F8_E4M3", codes, grid, dtype, {20, 33}, block};
      const at::Tensor expected = values * spread(grid, block, {20, 33});
      CHECK(same(read(packed, 0, 20), expected));
      CHECK(same(read(packed, 6, 15), expected.narrow(0, 6, 9)));
    }
  }
  // Every power of two with which nothing overflows; the least is subnormal.
  const at::Tensor powers = at::arange(245, at::kInt).to(at::kByte).view({245, 1});
  const at::Tensor many = all_codes(245, 40);
  const at::Tensor expected =
      (numbers(many).to(at::kDouble) * at::exp2(powers.to(at::kDouble) - 127)).to(at::kFloat);
  CHECK(same(read({"F8_E4M3", many, powers, "F8_E8M0", {245, 40}, {1, 40}}, 0, 245), expected));
}

TEST(fp8_that_a_file_has_transposed) {
  at::manual_seed(4);
  const at::Tensor codes = all_codes(50, 30);
  const at::Tensor scales = at::rand({4, 2}) + 0.1;
  const at::Tensor expected = (numbers(codes) * spread(scales, {16, 16}, {50, 30})).t();
  CHECK(same(read({"F8_E4M3", codes, scales, "F32", {50, 30}, {16, 16}, true}, 4, 9), expected));
}

TEST(fp8_that_is_no_number) {
  const at::Tensor codes = at::full({40, 40}, 0x38, at::kByte);  // 1
  const at::Tensor scales = at::full({2, 2}, 2, at::kFloat);
  const auto all = [&](int64_t begin, int64_t end) {
    return read({"F8_E4M3", codes, scales, "F32", {40, 40}, {32, 32}}, begin, end);
  };
  codes[35][39] = 0xff;
  CHECK_THROWS(all(0, 40), "the weight in /tmp/troupe_packed_");
  CHECK_THROWS(all(35, 36), "holds NaN or infinity in 1 of its 40 values");
  CHECK(all(0, 35).eq(2).all().item<bool>());
  codes[35][39] = 0;
  for (const float bad : {NAN, INFINITY}) {
    scales[1][1] = bad;
    CHECK_THROWS(all(0, 40), "are NaN or infinity in 1 of 4 blocks");
    CHECK_THROWS(all(33, 34), "are NaN or infinity in 1 of 2 blocks");
    CHECK(all(0, 32).eq(2).all().item<bool>());
  }
  scales[1][1] = 0;
  CHECK_THROWS(all(30, 40), "is 0 for values that are not, in row 32 from column 32 on");
  // Nothing but zeros, of either sign, may have a scale of 0.
  codes.slice(0, 32).slice(1, 32).fill_(0x80);
  CHECK(all(32, 40).slice(1, 32).eq(0).all().item<bool>() &&
        at::signbit(all(32, 40).slice(1, 32)).all().item<bool>());
}

TEST(what_cannot_be_read) {
  const at::Tensor codes = all_codes(4, 40);
  const at::Tensor scales = at::ones({4, 2});
  CHECK_THROWS(read({"F8_E4M3", codes, scales, "F64", {4, 40}, {1, 32}}, 0, 4),
               "expected scales of the dtype F32, F16, BF16 or F8_E8M0, got F64");
  CHECK_THROWS(read({"F8_E4M3", codes, scales, "F32", {4, 40}, {0, 32}}, 0, 4),
               "expected a matrix in blocks");
  CHECK_THROWS(read({"F8_E4M3", codes, at::ones({3, 2}), "F32", {4, 40}, {1, 32}}, 0, 4),
               "s ended 8 bytes early");
  CHECK_THROWS(read({"F8_E4M3", all_codes(4, 39), scales, "F32", {4, 40}, {1, 32}}, 0, 4),
               " ended 4 bytes early");
  CHECK_THROWS(read({"MXFP4", codes, scales, "F8_E8M0", {4, 40}, {1, 32}}, 0, 4),
               "expected rows of blocks of 32 values");
  CHECK_THROWS(read({"F8_E5M2", codes, scales, "F32", {4, 40}, {1, 32}}, 0, 4),
               "expected dtype F32, F16 or BF16, got F8_E5M2");
}

TEST_MAIN()
