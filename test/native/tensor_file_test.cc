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

TEST(a_file_that_is_not_kept_goes_with_its_writer) {
  const std::string path = "/tmp/troupe_unkept_" + std::to_string(::getpid());
  const TensorFile file{path, "header", 100, {}};
  {
    const TensorFileWriter writer(file, true);
    CHECK(::access(path.c_str(), F_OK) == 0);
    const TensorFileWriter second(file, false);  // of another rank, which has not created it
  }
  CHECK(::access(path.c_str(), F_OK) != 0);
  TensorFileWriter(file, true).keep();
  { const TensorFileWriter second(file, false); }
  CHECK(::access(path.c_str(), F_OK) == 0);
  ::unlink(path.c_str());
}

TEST_MAIN()
