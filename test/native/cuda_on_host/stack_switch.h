// What AddressSanitizer must be told of stacks that change; nothing without it.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace troupe::test::cuda_on_host {

// A stack that is left and comes back.
class StackSwitch {
 public:
  // Ahead of the jump to another stack, of `bytes` from `bottom` on.
  void leave_for(const void* bottom, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&saved_, bottom, bytes);
#endif
  }
  // First thing on this stack again, or at all.
  void back() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(saved_, &from_, &from_bytes_);
#endif
  }
  // To the stack that was left for this one.
  void leave_for_former() {
    leave_for(from_, from_bytes_);
  }

 private:
  void* saved_ = nullptr;
  const void* from_ = nullptr;
  size_t from_bytes_ = 0;
};

}  // namespace troupe::test::cuda_on_host
