// Copies of activations to the host and back.
#include "model/activation_stack.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "base/simulated.h"

namespace troupe {

namespace {

at::Tensor host_like(const at::Tensor& x) {
  if (x.is_cuda()) return at::empty(x.sizes(), at::TensorOptions().dtype(x.dtype()).pinned_memory(true));
  // A CPU, or a simulation: of a GPU's memory only what lies there counts.
  const CountAllocations nowhere(SimulateGpu::active() ? nullptr : CountAllocations::current());
  return at::empty(x.sizes(), x.options());
}

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

std::optional<c10::Stream> stream_for_copies(at::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

}  // namespace

OffloadedTensor::OffloadedTensor(const at::Tensor& x, const std::optional<c10::Stream>& copies)
    : device_(x.device()), copies_(copies), on_device_(x), on_host_(host_like(x)) {
  copy(on_host_, on_device_);
}

// Of a pass that failed: a copy may still write what the current stream is going to use.
OffloadedTensor::~OffloadedTensor() {
  if (!on_device_.defined()) return;
  try {
    wait();
  } catch (const c10::Error&) {
    // The device has failed: nothing will run there any more.
  }
}

void OffloadedTensor::copy(const at::Tensor& to, const at::Tensor& from) {
  if (!copies_) {
    to.copy_(from);
    return;
  }
  c10::Event before(device_.type());
  before.record(current_stream(device_));
  const c10::StreamGuard beside(*copies_);
  before.block(*copies_);
  to.copy_(from, /*non_blocking=*/true);
  copied_.emplace(device_.type());
  copied_->record(*copies_);
}

void OffloadedTensor::wait() const {
  if (copied_) copied_->block(current_stream(device_));
}

void OffloadedTensor::release() {
  if (!on_device_.defined()) return;
  wait();
  on_device_.reset();
}

void OffloadedTensor::fetch() {
  if (on_device_.defined()) return;
  on_device_ = at::empty(on_host_.sizes(), at::TensorOptions().dtype(on_host_.dtype()).device(device_));
  copy(on_device_, on_host_);
}

at::Tensor OffloadedTensor::take() {
  fetch();
  wait();
  on_host_.reset();
  return std::exchange(on_device_, at::Tensor());
}

ActivationOffload::ActivationOffload(at::Device device) : copies_(stream_for_copies(device)) {}

std::shared_ptr<OffloadedTensor> ActivationOffload::put(const at::Tensor& x) {
  const auto rows = std::make_shared<OffloadedTensor>(x, copies_);
  if (const auto before = std::exchange(last_, rows).lock()) before->release();
  return rows;
}

void ActivationStack::push(const at::Tensor& x) {
  if (offload_ != nullptr) {
    away_.push_back(offload_->put(x));
  } else {
    here_.push_back(x);
  }
}

void ActivationStack::fetch() {
  if (!away_.empty()) away_.back()->fetch();
}

at::Tensor ActivationStack::pop() {
  at::Tensor x;
  if (offload_ != nullptr) {
    x = away_.back()->take();
    away_.pop_back();
    fetch();
  } else {
    x = std::move(here_.back());
    here_.pop_back();
  }
  return x;
}

}  // namespace troupe
