// Scales first, then codes, rows at a time.
#include "checkpoint/packed_reader.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>

#include "base/error.h"
#include "base/parallel.h"

namespace troupe {

namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 18;  // of codes: what a thread reads at a time

constexpr uint8_t kE8M0Nan = 0xff;

// A power of two by its exponent, as it is in float32; that of 0 is subnormal there.
float e8m0(uint8_t exponent) {
  if (exponent == kE8M0Nan) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(exponent == 0 ? uint32_t{1} << 22 : uint32_t{exponent} << 23);
}

at::ScalarType scale_type(const TensorSlice& slice) {
  const std::string& dtype = slice.scales.dtype;
  if (dtype == "F32") return at::kFloat;
  if (dtype == "F16") return at::kHalf;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F8_E8M0") return at::kByte;
  fail(ErrorCode::kInvalidModel, "[checkpoint] tensor ", slice.label,
       ": expected scales of the dtype F32, F16, BF16 or F8_E8M0, got ", dtype);
}

// Rows [from, to) of scales, in float32.
at::Tensor read_scales(const TensorSlice& slice, int64_t from, int64_t to, int64_t columns,
                       const ReadBytes* read) {
  const at::ScalarType type = scale_type(slice);
  const auto width = static_cast<int64_t>(c10::elementSize(type));
  const at::Device device(read == nullptr ? at::kMeta : at::kCPU);
  const at::Tensor raw = at::empty({to - from, columns}, at::device(device).dtype(type));
  if (read == nullptr) return raw.to(at::kFloat);
  (*read)(raw.data_ptr(), raw.numel() * width, slice.scales.offset + from * columns * width);
  at::Tensor scales = raw;
  if (type == at::kByte) {
    scales = at::empty(raw.sizes(), at::kFloat);
    const uint8_t* exponents = raw.const_data_ptr<uint8_t>();
    std::transform(exponents, exponents + raw.numel(), scales.mutable_data_ptr<float>(), e8m0);
  }
  scales = scales.to(at::kFloat);
  const int64_t bad = at::isfinite(scales).logical_not().sum().item<int64_t>();
  require(bad == 0, ErrorCode::kNonFinite, "[checkpoint] tensor ", slice.label, ": its scales in ",
          slice.scales.path, " are NaN or infinity in ", bad, " of ", scales.numel(), " blocks");
  return scales;
}

void check_slice(const PackedFormat& format, const TensorSlice& slice, const std::vector<int64_t>& shape) {
  const TensorScales& scales = slice.scales;
  require(shape.size() == 2 && scales.block_rows > 0 && scales.block_columns > 0, ErrorCode::kInvalidModel,
          "[checkpoint] tensor ", slice.label, ": expected a matrix in blocks, and ", slice.param, " has ",
          shape.size(), " dimensions, a block ", scales.block_rows, " x ", scales.block_columns);
  // A run under one scale begins with a whole byte.
  require(format.bits == 8 || shape[1] % scales.block_columns == 0, ErrorCode::kInvalidModel,
          "[checkpoint] tensor ", slice.label, ": expected rows of blocks of ", scales.block_columns,
          " values, and ", slice.param, " has ", shape[1], " to the row");
}

}  // namespace

at::Tensor read_packed(const PackedFormat& format, const TensorSlice& slice, int64_t first,
                       const std::vector<int64_t>& shape, const ReadBytes* codes, const ReadBytes* scales) {
  check_slice(format, slice, shape);
  const int64_t rows = shape[0], columns = shape[1];
  const int64_t block_rows = slice.scales.block_rows;
  const int64_t block_columns = std::min(slice.scales.block_columns, std::max<int64_t>(columns, 1));
  const int64_t blocks = (columns + block_columns - 1) / block_columns;
  const int64_t from = first / block_rows, to = (first + rows - 1) / block_rows + 1;
  const at::Tensor grid = read_scales(slice, from, to, blocks, scales);
  const at::Device device(codes == nullptr ? at::kMeta : at::kCPU);
  const at::Tensor values = at::empty(shape, at::device(device).dtype(format.values));
  if (codes == nullptr) return values;

  const float* scale = grid.const_data_ptr<float>();
  auto* numbers = static_cast<char*>(values.data_ptr());
  const auto width = static_cast<int64_t>(values.element_size());
  const int64_t row_bytes = columns * format.bits / 8;
  const int64_t piece = std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(row_bytes, 1));
  parallel_items((rows + piece - 1) / piece, [&](int64_t item) {
    const int64_t begin = item * piece, end = std::min(rows, begin + piece);
    const auto bytes =
        std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>((end - begin) * row_bytes));
    (*codes)(bytes.get(), (end - begin) * row_bytes, slice.offset + (first + begin) * row_bytes);
    for (int64_t row = begin; row < end; ++row) {
      const float* of_row = scale + ((first + row) / block_rows - from) * blocks;
      const uint8_t* source = bytes.get() + (row - begin) * row_bytes;
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t column = block * block_columns;
        const bool meant =
            format.unpack(source + column * format.bits / 8, std::min(block_columns, columns - column),
                          of_row[block], numbers + (row * columns + column) * width);
        require(meant, ErrorCode::kNonFinite, "[checkpoint] tensor ", slice.label, ": its scale in ",
                slice.scales.path, " is 0 for values that are not, in row ", first + row, " from column ",
                column, " on: fetch the checkpoint again");
      }
    }
  });
  return values;
}

}  // namespace troupe
