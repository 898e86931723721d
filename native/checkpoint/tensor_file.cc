// Positioned reads and writes of tensor slices, with conversion and checks.
#include "checkpoint/tensor_file.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "base/simulated.h"
#include "checkpoint/packed_reader.h"

namespace troupe {

namespace {

// Closes on scope exit.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void fail_io(const char* action, const std::string& path) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  fail(full ? ErrorCode::kNoSpace : ErrorCode::kIo, "[checkpoint] ", action, " ", path, ": ",
       std::strerror(error));
}

void read_all(int fd, const std::string& path, void* target, int64_t size, int64_t offset) {
  auto* bytes = static_cast<char*>(target);
  while (size > 0) {
    const ssize_t got = ::pread(fd, bytes, static_cast<size_t>(size), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io("cannot read", path);
    require(got > 0, ErrorCode::kIo, "[checkpoint] ", path, " ended ", size,
            " bytes early: it was truncated");
    bytes += got;
    offset += got;
    size -= got;
  }
}

void write_all(int fd, const std::string& path, const void* source, int64_t size, int64_t offset) {
  const auto* bytes = static_cast<const char*>(source);
  while (size > 0) {
    const ssize_t put = ::pwrite(fd, bytes, static_cast<size_t>(size), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_io("cannot write", path);
    bytes += put;
    offset += put;
    size -= put;
  }
}

at::ScalarType scalar_type(const TensorSlice& slice) {
  if (slice.dtype == "F32") return at::kFloat;
  if (slice.dtype == "F16") return at::kHalf;
  if (slice.dtype == "BF16") return at::kBFloat16;
  fail(ErrorCode::kInvalidModel, "[checkpoint] tensor ", slice.label,
       ": expected dtype F32, F16 or BF16, got ", slice.dtype);
}

void check_rows(const TensorSlice& slice, int64_t rows) {
  require(slice.row >= 0 && slice.rows >= 0 && slice.row + slice.rows <= rows, ErrorCode::kInvalidArgument,
          "[checkpoint] ", slice.label, ": rows ", slice.row, " to ", slice.row + slice.rows, " are outside ",
          slice.param, ", which has ", rows);
}

// Of NaN and infinities, which have all bits of `exponent`.
template <typename Bits>
int64_t count_not_finite(const at::Tensor& values, Bits exponent) {
  constexpr int64_t kPiece = int64_t{1} << 18;
  const auto* bits = static_cast<const Bits*>(values.const_data_ptr());
  std::atomic<int64_t> all = 0;
  parallel_items((values.numel() + kPiece - 1) / kPiece, [&](int64_t piece) {
    const int64_t end = std::min(values.numel(), (piece + 1) * kPiece);
    uint32_t own = 0;
    for (int64_t i = piece * kPiece; i < end; ++i) own += (bits[i] & exponent) == exponent ? 1U : 0U;
    all += own;
  });
  return all;
}

void check_finite(const at::Tensor& values, const TensorSlice& slice, const std::string& path) {
  if (simulated(values)) return;
  const at::ScalarType type = values.scalar_type();
  const int64_t bad = type == at::kFloat      ? count_not_finite<uint32_t>(values, 0x7f800000)
                      : type == at::kBFloat16 ? count_not_finite<uint16_t>(values, 0x7f80)
                                              : count_not_finite<uint16_t>(values, 0x7c00);
  require(bad == 0, ErrorCode::kNonFinite, "[checkpoint] tensor ", slice.label, " in ", path,
          " holds NaN or infinity in ", bad, " of its ", values.numel(), " values");
}

// How many rows of a parameter of this shape are read at a time: their memory is that of the piece before,
// which a large tensor as a whole would have to find anew, and is what reading takes beside the parameters.
int64_t rows_of_piece(at::ScalarType type, const std::vector<int64_t>& shape) {
  constexpr int64_t kPieceBytes = int64_t{1} << 24;
  const int64_t row = std::accumulate(shape.begin() + 1, shape.end(),
                                      static_cast<int64_t>(c10::elementSize(type)), std::multiplies<>());
  return std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(row, 1));
}

// What `file` has of `slice` from its row `first` on; without a file (in a simulation) nothing.
at::Tensor read_values(const Descriptor* file, const std::string& path, const TensorSlice& slice,
                       int64_t first, const std::vector<int64_t>& shape) {
  const at::Device device(file == nullptr ? at::kMeta : at::kCPU);
  const at::Tensor values = at::empty(shape, at::device(device).dtype(scalar_type(slice)));
  if (file != nullptr)
    read_all(file->get(), path, values.data_ptr(), static_cast<int64_t>(values.nbytes()),
             slice.offset + first * static_cast<int64_t>(values.nbytes()) / shape[0]);
  return values;
}

// Rows of `slice` from `first` on, of the matrix that lies in `file`, with scales wherever they are.
at::Tensor read_packed_slice(const Descriptor* file, const std::string& path, const PackedFormat& format,
                             const TensorSlice& slice, int64_t first, const std::vector<int64_t>& shape) {
  if (file == nullptr) return read_packed(format, slice, first, shape, nullptr, nullptr);
  const std::string& other_path = slice.scales.path;
  const Descriptor other(other_path, O_RDONLY);
  if (other.get() < 0) fail_io("cannot open", other_path);
  const ReadBytes codes = [&](void* target, int64_t size, int64_t offset) {
    read_all(file->get(), path, target, size, offset);
  };
  const ReadBytes scales = [&](void* target, int64_t size, int64_t offset) {
    read_all(other.get(), other_path, target, size, offset);
  };
  return read_packed(format, slice, first, shape, &codes, &scales);
}

}  // namespace

void read_tensor_file(const TensorFile& file,
                      const std::function<std::vector<int64_t>(const std::string& param)>& shape_of,
                      const std::function<RowRange(const TensorSlice&)>& rows_of,
                      const std::function<void(const TensorSlice&, const at::Tensor& values)>& store) {
  const bool simulated = file.path.empty();  // [Note: files without a path]
  // What is read lies on the host, which is not what a simulation of a GPU counts.
  const CountAllocations counted(SimulateGpu::active() ? nullptr : CountAllocations::current());
  const std::unique_ptr<const Descriptor> descriptor =
      simulated ? nullptr : std::make_unique<const Descriptor>(file.path, O_RDONLY);
  if (!simulated && descriptor->get() < 0) fail_io("cannot open", file.path);
  for (const TensorSlice& whole : file.tensors) {
    std::vector<int64_t> shape = shape_of(whole.param);
    check_rows(whole, shape[0]);
    const RowRange rows = rows_of(whole);
    if (rows.begin >= rows.end) continue;
    const PackedFormat* format = packed_format(whole.dtype);
    const auto read = [&](const TensorSlice& slice, int64_t first) {
      shape[0] = slice.rows;
      std::vector<int64_t> in_file = shape;
      if (slice.transpose) std::reverse(in_file.begin(), in_file.end());
      const at::Tensor values =
          format ? read_packed_slice(descriptor.get(), file.path, *format, slice, first, in_file)
                 : read_values(descriptor.get(), file.path, slice, first, in_file);
      check_finite(values, slice, file.path);
      store(slice, slice.transpose ? values.t() : values);
    };
    // A transposed slice has its rows all over the file: it is read whole.
    if (whole.transpose) {
      read(whole, 0);
      continue;
    }
    const int64_t piece = rows_of_piece(format ? format->values : scalar_type(whole), shape);
    for (int64_t row = rows.begin; row < rows.end; row += piece) {
      TensorSlice slice = whole;
      slice.row = row;
      slice.rows = std::min(piece, rows.end - row);
      read(slice, row - whole.row);
      if (simulated) break;  // pieces are alike
    }
  }
}

struct TensorFileWriter::State {
  State(const std::string& file, bool create)
      : path(file), descriptor(file, O_WRONLY | (create ? O_CREAT | O_EXCL : 0)), created(create) {
    if (simulated() || descriptor.get() >= 0) return;
    fail_io(
        create ? "cannot create" : "cannot open (rank 0 has created it: all ranks must see its directory)",
        path);
  }
  ~State() {
    if (created && !kept && descriptor.get() >= 0) ::unlink(path.c_str());
  }
  bool simulated() const { return path.empty(); }  // [Note: files without a path]
  void put(const at::Tensor& values, int64_t offset) const {
    if (simulated()) return;
    write_all(descriptor.get(), path, values.const_data_ptr(), static_cast<int64_t>(values.nbytes()), offset);
  }
  std::string path;
  Descriptor descriptor;
  bool created;
  bool kept = false;
};

TensorFileWriter::TensorFileWriter(const TensorFile& file, bool create)
    : state_(std::make_unique<State>(file.path, create)) {
  if (!create || state_->simulated()) return;
  // Reserving the whole size first finds a full disk before any work.
  if (file.size > 0) {
    const int error = ::posix_fallocate(state_->descriptor.get(), 0, file.size);
    if (error != 0 && error != EOPNOTSUPP && error != EINVAL) {
      errno = error;
      fail_io("cannot reserve space for", file.path);
    }
  }
  write_all(state_->descriptor.get(), file.path, file.header.data(), static_cast<int64_t>(file.header.size()),
            0);
}

TensorFileWriter::~TensorFileWriter() = default;

void TensorFileWriter::write(const TensorSlice& slice, const std::vector<int64_t>& shape, int64_t begin,
                             const at::Tensor& elements) {
  check_rows(slice, shape[0]);
  const int64_t width = std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
  const int64_t first = slice.row * width;  // of the slice's elements, in the parameter
  const int64_t from = std::max(begin, first);
  const int64_t to = std::min(begin + elements.numel(), first + slice.rows * width);
  if (from >= to) return;
  const at::Tensor part = elements.narrow(0, from - begin, to - from);
  const at::Device host = on_cpu_threads(part.device()) ? part.device() : at::Device(at::kCPU);
  const at::Tensor values = part.to(host, scalar_type(slice)).contiguous();
  // float16 ends at 65504; the others have the exponents of float32.
  if (values.scalar_type() == at::kHalf) {
    const at::Tensor largest = part.abs().max();
    require(!at::isinf(values).any().item<bool>() || at::isinf(largest).item<bool>(), ErrorCode::kNonFinite,
            "[checkpoint] tensor ", slice.label, " has values up to ", largest.item<double>(),
            ", which float16 (at most 65504) cannot hold: save it as bfloat16 or float32");
  }
  const auto size = static_cast<int64_t>(values.element_size());
  if (!slice.transpose) return state_->put(values, slice.offset + (from - first) * size);

  // In the file the rows are columns: what begins or ends within a row is a column of its own.
  int64_t at = from - first;
  const int64_t end = to - first;
  while (at < end) {
    const int64_t row = at / width;
    const int64_t column = at % width;
    const int64_t rows = column == 0 ? std::max<int64_t>(1, (end - at) / width) : 1;
    const int64_t columns = std::min(width - column, (end - at + rows - 1) / rows);
    const at::Tensor block =
        values.narrow(0, at - (from - first), rows * columns).view({rows, columns}).t().contiguous();
    const auto offset = [&](int64_t c) { return slice.offset + ((column + c) * slice.rows + row) * size; };
    if (rows == slice.rows) {
      state_->put(block, offset(0));
    } else {
      for (int64_t c = 0; c < columns; ++c) state_->put(block[c], offset(c));
    }
    at += rows * columns;
  }
}

void TensorFileWriter::sync() {
  if (!state_->simulated() && ::fsync(state_->descriptor.get()) != 0) fail_io("cannot sync", state_->path);
}

void TensorFileWriter::keep() {
  state_->kept = true;
}

}  // namespace troupe
