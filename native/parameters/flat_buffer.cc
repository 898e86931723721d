// Storages that are emptied and filled.
#include "parameters/flat_buffer.h"

#include <ATen/ATen.h>

#include "base/counting_allocator.h"

namespace troupe {

// A storage without memory keeps its number of bytes, which is what LibTorch checks views against.
FlatBuffer::FlatBuffer(int64_t count, at::ScalarType dtype, at::Device device)
    : tensor_(at::empty({0}, at::TensorOptions().dtype(dtype).device(device))) {
  const size_t bytes = static_cast<size_t>(count) * c10::elementSize(dtype);
  tensor_.storage().unsafeGetStorageImpl()->set_nbytes(bytes);
  tensor_.unsafeGetTensorImpl()->set_sizes_contiguous({count});
}

FlatBuffer::FlatBuffer(at::Tensor tensor) : tensor_(std::move(tensor)), allocated_(true) {}

void FlatBuffer::allocate() {
  if (allocated_ || !tensor_.defined()) return;
  const AllocateFor gathered(MemoryPart::kGathered);
  // Not by the storage's own allocator: the first memory may have come from elsewhere.
  const at::Tensor fresh = at::empty_like(tensor_);
  c10::StorageImpl* storage = tensor_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(
      fresh.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, tensor_.device())));
  allocated_ = true;
}

void FlatBuffer::release() {
  if (!allocated_) return;
  c10::StorageImpl* storage = tensor_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor_.device()));
  allocated_ = false;
}

}  // namespace troupe
