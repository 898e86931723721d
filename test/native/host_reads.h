#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <functional>
#include <string_view>

namespace troupe::test {

constexpr std::string_view kHostReads[] = {
    "aten::_local_scalar_dense", "aten::nonzero",  "aten::equal",         "aten::bincount",
    "aten::repeat_interleave",   "aten::allclose", "aten::masked_select", "aten::_unique2"};

inline std::atomic<int64_t>& counted_reads() {
  static std::atomic<int64_t> count{0};
  return count;
}

inline std::unique_ptr<at::ObserverContext> count_read(const at::RecordFunction& function) {
  for (const std::string_view read : kHostReads) {
    if (read == function.name()) ++counted_reads();
  }
  return nullptr;
}

// How often body() had LibTorch give numbers of a tensor to the host, or shapes that depend on them: where
// the tensor is a GPU's, each is a wait for all that was computed before.
inline int64_t host_reads(const std::function<void()>& body) {
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&count_read).scopes({at::RecordScope::FUNCTION}));
  counted_reads() = 0;
  body();
  at::removeCallback(handle);
  return counted_reads();
}

inline std::unique_ptr<at::ObserverContext> count_call(const at::RecordFunction&) {
  ++counted_reads();
  return nullptr;
}

// How many operations of LibTorch body() runs, those that run within others included: where the tensors are a
// GPU's, each is a launch or does little.
inline int64_t operations(const std::function<void()>& body) {
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&count_call).scopes({at::RecordScope::FUNCTION}));
  counted_reads() = 0;
  body();
  at::removeCallback(handle);
  return counted_reads();
}

}  // namespace troupe::test
