// The inputs of the blocks of a pass, kept for their backward here or on the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

namespace troupe {

// A tensor that waits on the host until it is needed again: pinned memory for a GPU, to which and from which
// it is copied beside the current stream's work. On a CPU both are the same memory: it is copied, nothing is
// saved.
class OffloadedTensor {
 public:
  // x, which nobody may write to until release(). copies: the stream of the copies; none: they are made at
  // once.
  OffloadedTensor(const at::Tensor& x, const std::optional<c10::Stream>& copies);
  ~OffloadedTensor();
  OffloadedTensor(const OffloadedTensor&) = delete;
  OffloadedTensor& operator=(const OffloadedTensor&) = delete;

  // The device's memory, which the current stream may use again only after the copy.
  void release();
  // Begins the way back. Nothing while the device has it.
  void fetch();
  // x again, for what the current stream is given from here on; the last call.
  at::Tensor take();

 private:
  void copy(const at::Tensor& to, const at::Tensor& from);
  void wait() const;

  at::Device device_;
  std::optional<c10::Stream> copies_;
  at::Tensor on_device_, on_host_;
  std::optional<c10::Event> copied_;
};

// The copies of one rank.
class ActivationOffload {
 public:
  explicit ActivationOffload(at::Device device);

  // Begins the copy of x, after which the one before it is released: so the device has at most one that waits
  // for its copy, and a pass whose backward follows at once has its last tensor still there. A copy that is
  // slower than a block's forward holds that up.
  std::shared_ptr<OffloadedTensor> put(const at::Tensor& x);

 private:
  std::optional<c10::Stream> copies_;
  std::weak_ptr<OffloadedTensor> last_;
};

class ActivationStack {
 public:
  ActivationStack() = default;  // on their device
  // offload: null: on their device. Outlives this.
  explicit ActivationStack(ActivationOffload* offload) : offload_(offload) {}

  void push(const at::Tensor& x);
  // Begins to bring back what pop() returns next, which the pop() before does, too.
  void fetch();
  // What was pushed last.
  at::Tensor pop();

 private:
  ActivationOffload* offload_ = nullptr;
  std::vector<at::Tensor> here_;
  std::vector<std::shared_ptr<OffloadedTensor>> away_;
};

}  // namespace troupe
