// Anonymous mappings as tensors.
#include "base/zero_pages.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/counting_allocator.h"
#include "base/error.h"

namespace troupe {

at::Tensor zero_pages(int64_t count, const at::TensorOptions& options) {
  if (!options.device().is_cpu() || count == 0) return at::zeros({count}, options);
  const size_t bytes = static_cast<size_t>(count) * options.dtype().itemsize();
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(data != MAP_FAILED, ErrorCode::kOutOfMemory, "[engine] cannot map ", bytes,
          " bytes: ", std::strerror(errno));
  const std::shared_ptr<ByteCount> counted = CountAllocations::current(c10::kCPU);
  const MemoryPart part = AllocateFor::current();
  if (counted) counted->add(static_cast<int64_t>(bytes), part);
  return at::from_blob(
      data, {count},
      [bytes, counted, part](void* mapped) {
        ::munmap(mapped, bytes);
        if (counted) counted->remove(static_cast<int64_t>(bytes), part);
      },
      options);
}

}  // namespace troupe
