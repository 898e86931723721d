#include "checkpoint/tensor_file.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

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

// The shape in which a slice lies in the file.
std::vector<int64_t> file_shape(const at::Tensor& view, bool transpose) {
  std::vector<int64_t> shape = view.sizes().vec();
  if (transpose) std::reverse(shape.begin(), shape.end());
  return shape;
}

}  // namespace

at::Tensor slice_of(const at::Tensor& tensor, const TensorSlice& slice) {
  require(slice.row >= 0 && slice.rows >= 0 && slice.row + slice.rows <= tensor.size(0),
          ErrorCode::kInvalidArgument, "[checkpoint] ", slice.label, ": rows ", slice.row, " to ",
          slice.row + slice.rows, " are outside ", slice.param, ", which has ", tensor.size(0));
  return tensor.narrow(0, slice.row, slice.rows);
}

void read_tensor_file(const TensorFile& file, const std::function<at::Tensor(const std::string&)>& lookup) {
  const Descriptor descriptor(file.path, O_RDONLY);
  if (descriptor.get() < 0) fail_io("cannot open", file.path);
  for (const TensorSlice& slice : file.tensors) {
    const at::Tensor view = slice_of(lookup(slice.param), slice);
    const at::Tensor loaded = at::empty(file_shape(view, slice.transpose), scalar_type(slice));
    read_all(descriptor.get(), file.path, loaded.data_ptr(), static_cast<int64_t>(loaded.nbytes()),
             slice.offset);
    const at::Tensor values = loaded.to(at::kFloat);
    if (!at::isfinite(values).all().item<bool>()) {
      fail(ErrorCode::kNonFinite, "[checkpoint] tensor ", slice.label, " in ", file.path,
           " holds NaN or infinity in ", at::isfinite(values).logical_not().sum().item<int64_t>(), " of its ",
           values.numel(), " values");
    }
    view.copy_(slice.transpose ? values.t() : values);
  }
}

void write_tensor_file(const TensorFile& file, const std::function<at::Tensor(const std::string&)>& lookup) {
  const Descriptor descriptor(file.path, O_WRONLY | O_CREAT | O_EXCL);
  if (descriptor.get() < 0) fail_io("cannot create", file.path);
  try {
    // Reserving the whole size first finds a full disk before any work.
    if (file.size > 0) {
      const int error = ::posix_fallocate(descriptor.get(), 0, file.size);
      if (error != 0 && error != EOPNOTSUPP && error != EINVAL) {
        errno = error;
        fail_io("cannot reserve space for", file.path);
      }
    }
    write_all(descriptor.get(), file.path, file.header.data(), static_cast<int64_t>(file.header.size()), 0);
    for (const TensorSlice& slice : file.tensors) {
      const at::Tensor view = slice_of(lookup(slice.param), slice);
      const at::Tensor values =
          (slice.transpose ? view.t() : view).to(at::kCPU, scalar_type(slice)).contiguous();
      write_all(descriptor.get(), file.path, values.data_ptr(), static_cast<int64_t>(values.nbytes()),
                slice.offset);
    }
    if (::fsync(descriptor.get()) != 0) fail_io("cannot sync", file.path);
  } catch (...) {
    ::unlink(file.path.c_str());
    throw;
  }
}

}  // namespace troupe
