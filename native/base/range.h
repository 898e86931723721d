// Named ranges in the trace of a profile.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <string>

namespace troupe {

// A range of the profile that records this thread, from here to the end of the scope. Where none does, a look
// at a thread-local: names with numbers are put together only when somebody reads them. Our kernels are no
// operations of LibTorch, so without these a trace would have gaps where most of the time goes.
class Range {
 public:
  explicit Range(const char* name) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) record_.before(name);
  }
  // "layer3", "layer3 backward"
  Range(const char* name, int64_t number, const char* part = "") : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) record_.before(name + std::to_string(number) + part);
  }
  // "all_gather layers.3"
  Range(const char* name, const std::string& subject) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) record_.before(name + (" " + subject));
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  at::RecordFunction record_;
};

}  // namespace troupe
