// Positioned reads and writes of tensor slices, with conversion and checks.
#include "checkpoint/tensor_file.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <numeric>

#include "base/error.h"

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

}  // namespace

void read_tensor_file(const TensorFile& file,
                      const std::function<std::vector<int64_t>(const std::string& param)>& shape_of,
                      const std::function<RowRange(const TensorSlice&)>& rows_of,
                      const std::function<void(const TensorSlice&, const at::Tensor& values)>& store) {
  const Descriptor descriptor(file.path, O_RDONLY);
  if (descriptor.get() < 0) fail_io("cannot open", file.path);
  for (const TensorSlice& whole : file.tensors) {
    std::vector<int64_t> shape = shape_of(whole.param);
    check_rows(whole, shape[0]);
    const RowRange rows = rows_of(whole);
    if (rows.begin >= rows.end) continue;
    TensorSlice slice = whole;
    if (!whole.transpose) {  // a transposed slice has its rows all over the file: it is read whole
      const int64_t row_size =
          std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
      const int64_t bytes = row_size * static_cast<int64_t>(c10::elementSize(scalar_type(whole)));
      slice.offset += (rows.begin - whole.row) * bytes;
      slice.row = rows.begin;
      slice.rows = rows.end - rows.begin;
    }
    shape[0] = slice.rows;
    if (slice.transpose) std::reverse(shape.begin(), shape.end());
    const at::Tensor loaded = at::empty(shape, scalar_type(slice));
    read_all(descriptor.get(), file.path, loaded.data_ptr(), static_cast<int64_t>(loaded.nbytes()),
             slice.offset);
    const at::Tensor values = loaded.to(at::kFloat);
    if (!at::isfinite(values).all().item<bool>()) {
      fail(ErrorCode::kNonFinite, "[checkpoint] tensor ", slice.label, " in ", file.path,
           " holds NaN or infinity in ", at::isfinite(values).logical_not().sum().item<int64_t>(), " of its ",
           values.numel(), " values");
    }
    store(slice, slice.transpose ? values.t() : values);
  }
}

struct TensorFileWriter::State {
  explicit State(const std::string& file) : path(file), descriptor(file, O_WRONLY | O_CREAT | O_EXCL) {
    if (descriptor.get() < 0) fail_io("cannot create", path);
  }
  ~State() {
    if (!finished && descriptor.get() >= 0) ::unlink(path.c_str());
  }
  std::string path;
  Descriptor descriptor;
  bool finished = false;
};

TensorFileWriter::TensorFileWriter(const TensorFile& file) : state_(std::make_unique<State>(file.path)) {
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

void TensorFileWriter::write(const TensorSlice& slice, const at::Tensor& tensor) {
  check_rows(slice, tensor.size(0));
  const at::Tensor view = tensor.narrow(0, slice.row, slice.rows);
  const at::Tensor values = (slice.transpose ? view.t() : view).to(at::kCPU, scalar_type(slice)).contiguous();
  // float16 ends at 65504; the others have the exponents of float32.
  if (values.scalar_type() == at::kHalf) {
    const at::Tensor largest = view.abs().max();
    require(!at::isinf(values).any().item<bool>() || at::isinf(largest).item<bool>(), ErrorCode::kNonFinite,
            "[checkpoint] tensor ", slice.label, " has values up to ", largest.item<double>(),
            ", which float16 (at most 65504) cannot hold: save it as bfloat16 or float32");
  }
  write_all(state_->descriptor.get(), state_->path, values.data_ptr(), static_cast<int64_t>(values.nbytes()),
            slice.offset);
}

void TensorFileWriter::finish() {
  if (::fsync(state_->descriptor.get()) != 0) fail_io("cannot sync", state_->path);
  state_->finished = true;
}

}  // namespace troupe
