#include "fsdp/flat_buffer.h"

#include <ATen/ATen.h>

namespace troupe {

FlatBuffer::FlatBuffer(int64_t count, at::ScalarType dtype, at::Device device)
    : tensor_(at::empty({count}, at::TensorOptions().dtype(dtype).device(device))),
      bytes_(tensor_.nbytes()),
      allocated_(true) {}

void FlatBuffer::allocate() {
  if (allocated_) return;
  c10::StorageImpl* storage = tensor_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes_));
  storage->set_nbytes(bytes_);
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
