// Values that come out of a file, and those that no weight may have.
#include "checkpoint/tensor_file.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "check.h"

using namespace troupe;

namespace {

constexpr int64_t kValues = 600'000;  // several pieces of what is checked at a time

at::Tensor read(const at::Tensor& values, const std::string& dtype = "F32") {
  const std::string path = "/tmp/troupe_tensor_file_" + std::to_string(::getpid());
  std::FILE* out = std::fopen(path.c_str(), "w");
  CHECK(std::fwrite(values.const_data_ptr(), values.element_size(), kValues, out) == kValues);
  std::fclose(out);
  TensorFile file{path, "", static_cast<int64_t>(values.nbytes()), {}};
  file.tensors.push_back({"weight", 0, kValues / 100, false, "the weight", 0, dtype});
  at::Tensor found;
  try {
    read_tensor_file(
        file,
        [](const std::string&) {
          return std::vector<int64_t>{kValues / 100, 100};
        },
        [](const TensorSlice& slice) {
          return RowRange{slice.row, slice.rows};
        },
        [&](const TensorSlice&, const at::Tensor& all) { found = all.clone(); });
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  ::unlink(path.c_str());
  return found.view({-1});
}

}  // namespace

TEST(values_are_those_of_the_file) {
  const at::Tensor values = at::arange(kValues, at::kFloat);
  CHECK(read(values).equal(values));
  for (const auto& [dtype, type] : {std::pair{"BF16", at::kBFloat16}, {"F16", at::kHalf}}) {
    const at::Tensor narrow = values.mul(0.01).to(type);
    const at::Tensor found = read(narrow, dtype);
    CHECK(found.scalar_type() == type && found.equal(narrow));
    narrow[7] = INFINITY;
    narrow[kValues - 1] = NAN;
    CHECK_THROWS(read(narrow, dtype), "holds NaN or infinity in 2 of its 600000 values");
  }
}

TEST(values_that_are_no_numbers_are_counted_wherever_they_are) {
  const at::Tensor values = at::arange(kValues, at::kFloat);
  values[kValues - 1] = INFINITY;
  CHECK_THROWS(read(values), "tensor the weight in /tmp/troupe_tensor_file_");
  CHECK_THROWS(read(values), "holds NaN or infinity in 1 of its 600000 values");
  values[5] = values[300'000] = NAN;
  CHECK_THROWS(read(values), "in 3 of its 600000 values");
}

// As an engine writes them: the flat parameter in pieces that end anywhere.
TEST(rows_of_a_parameter_are_written_where_they_belong_in_the_file) {
  const std::string path = "/tmp/troupe_rows_" + std::to_string(::getpid());
  const at::Tensor values = at::arange(24, at::kFloat).view({6, 4});
  TensorFile file{path, "header", 6 + 24 * 4, {}};
  file.tensors.push_back({"weight", 2, 3, false, "inner rows", 6, "F32", {}});
  file.tensors.push_back({"weight", 0, 2, true, "first rows", 6 + 12 * 4, "F32", {}});
  file.tensors.push_back({"weight", 5, 1, false, "last row", 6 + 20 * 4, "F32", {}});
  {
    TensorFileWriter writer(file, true);
    for (int64_t begin = 0; begin < 24; begin += 7) {
      const at::Tensor piece = values.view({-1}).narrow(0, begin, std::min<int64_t>(7, 24 - begin));
      for (const TensorSlice& slice : file.tensors) writer.write(slice, {6, 4}, begin, piece);
    }
    writer.keep();
  }
  const at::Tensor found = at::empty(24);
  std::FILE* in = std::fopen(path.c_str(), "r");
  CHECK(in != nullptr && std::fseek(in, 6, SEEK_SET) == 0 &&
        std::fread(found.mutable_data_ptr(), 4, 24, in) == 24 && std::fgetc(in) == EOF);
  if (in != nullptr) std::fclose(in);
  ::unlink(path.c_str());
  CHECK(found.narrow(0, 0, 12).equal(values.narrow(0, 2, 3).reshape({-1})));
  CHECK(found.narrow(0, 12, 8).equal(values.narrow(0, 0, 2).t().reshape({-1})));
  CHECK(found.narrow(0, 20, 4).equal(values[5]));
}

namespace {

// A file of blocks and one of scales, [rows, 64] in MXFP4; rows [begin, end) of the parameter are asked for.
at::Tensor read_packed(const at::Tensor& blocks, const at::Tensor& scales, int64_t begin, int64_t end) {
  const std::string path = "/tmp/troupe_mxfp4_" + std::to_string(::getpid());
  const auto write = [](const std::string& file, const at::Tensor& bytes) {
    std::FILE* out = std::fopen(file.c_str(), "w");
    std::fputs("header", out);
    std::fwrite(bytes.const_data_ptr(), 1, bytes.nbytes(), out);
    std::fclose(out);
  };
  write(path, blocks);
  write(path + "s", scales);
  constexpr int64_t kBefore = 3;  // rows of the parameter before the slice
  const int64_t rows = blocks.size(0);
  TensorFile file{path, "", 0, {}};
  file.tensors.push_back({"weight", kBefore, rows, false, "the weight", 6, "MXFP4", {path + "s", 6}});
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
          return std::vector<int64_t>{rows + kBefore, 64};
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
  CHECK(row == begin + kBefore && found.size(0) == end - begin);
  return found;
}

}  // namespace

TEST(packed_values_are_exact_in_whatever_rows) {
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
  const at::Tensor whole = read_packed(blocks, scales, 0, 256);
  CHECK(whole.scalar_type() == at::kBFloat16 && whole.to(at::kDouble).equal(expected));
  CHECK(at::signbit(whole).equal(at::signbit(expected)));
  CHECK(read_packed(blocks, scales, 17, 20).equal(whole.narrow(0, 17, 3)));
}

TEST(packed_values_that_are_no_numbers) {
  const at::Tensor blocks = at::full({4, 32}, 0x77, at::kByte);  // 6
  const at::Tensor scales = at::full({4, 2}, 127, at::kByte);
  scales[2][1] = 255;
  CHECK_THROWS(read_packed(blocks, scales, 0, 4), "tensor the weight: its scales in /tmp/troupe_mxfp4_");
  CHECK_THROWS(read_packed(blocks, scales, 1, 3), "are NaN (0xff) in 1 of 4 blocks");
  CHECK(read_packed(blocks, scales, 0, 2).eq(6).all().item<bool>());
  scales[2][1] = 254;  // 6 * 2^127
  CHECK_THROWS(read_packed(blocks, scales, 0, 4), "holds NaN or infinity in 32 of its 256 values");
}

TEST_MAIN()
