// A flat tensor of state, kept on its device or on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "parameters/flat_buffer.h"

namespace troupe {

// A flat tensor of state (masters, gradients, a moment) that is kept on its device or on the host. What is
// kept on the host (pinned memory for a CUDA device) comes to the device for the time of its use: fetch(),
// then give_back(). tensor() and views of it stay valid all the time, and may be read or written while the
// buffer is kept on the device or has been fetched.
//
// On a CPU device both are the same memory. The path is the same, nothing is saved.
class StateBuffer {
 public:
  StateBuffer() = default;  // there is no such state: every call does nothing
  // Zeroed. lazily: on a CPU its pages take up memory only once they are written.
  StateBuffer(int64_t count, at::ScalarType dtype, at::Device device, bool lazily, bool on_host);

  bool defined() const { return device_.tensor().defined(); }
  const at::Tensor& tensor() const { return device_.tensor(); }
  // Where it is kept: always has memory. What was written to tensor() since fetch() is not there yet.
  const at::Tensor& kept() const { return on_host() ? host_ : device_.tensor(); }
  bool on_host() const { return host_.defined(); }
  int64_t bytes() const { return defined() ? static_cast<int64_t>(device_.tensor().nbytes()) : 0; }

  // Moves to where it is kept from now on. What was fetched and not given back is lost. Without memory for
  // the move the error is LibTorch's, and nothing has changed.
  void keep_on_host();
  void keep_on_device();

  // Nothing when the device has it. In the order of the current stream; the host does not wait for it.
  void fetch();
  // Frees the memory that fetch() took; changed: after the host has got the new values.
  void give_back(bool changed);
  // To zeros, wherever it is kept.
  void clear();

 private:
  FlatBuffer device_;
  at::Tensor host_;  // undefined: kept on the device
};

}  // namespace troupe
