// A flat tensor whose memory comes and goes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe {

// A flat tensor whose memory comes and goes while the tensor and all views of it stay valid: they share
// the storage, and it is the storage that is emptied and filled. Views must not be read or written while
// there is no memory.
class FlatBuffer {
 public:
  FlatBuffer() = default;
  // Without memory; views can be made all the same.
  FlatBuffer(int64_t count, at::ScalarType dtype, at::Device device);
  // Begins with the memory of `tensor`, which is contiguous and has its storage for itself.
  explicit FlatBuffer(at::Tensor tensor);

  const at::Tensor& tensor() const { return tensor_; }
  bool allocated() const { return allocated_; }
  void allocate();  // nothing when there is memory
  void release();   // nothing when there is none

 private:
  at::Tensor tensor_;
  bool allocated_ = false;
};

}  // namespace troupe
