#include "fsdp/flat_buffer.h"

#include <ATen/ATen.h>

namespace troupe {

FlatBuffer::FlatBuffer(int64_t count, at::ScalarType dtype, at::Device device)
    : FlatBuffer(at::empty({count}, at::TensorOptions().dtype(dtype).device(device))) {}

FlatBuffer::FlatBuffer(at::Tensor tensor) : tensor_(std::move(tensor)), allocated_(true) {}

void FlatBuffer::allocate() {
  if (allocated_ || !tensor_.defined()) return;
  // Not by the storage's own allocator: the first memory may have come from elsewhere.
  const at::Tensor fresh = at::empty_like(tensor_);
  c10::StorageImpl* storage = tensor_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(
      fresh.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, tensor_.device())));
  storage->set_nbytes(tensor_.nbytes());
  allocated_ = true;
}

void FlatBuffer::release() {
  if (!allocated_) return;
  c10::StorageImpl* storage = tensor_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor_.device()));
  storage->set_nbytes(0);
  allocated_ = false;
}

}  // namespace troupe
