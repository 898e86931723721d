// The one exception of the core, and `require`, which throws it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace troupe {

// Stable codes: the binding turns each into the TypeScript class and `code` string of ts/errors.ts.
enum class ErrorCode {
  kInvalidArgument,  // the caller passed something unusable
  kInvalidModel,     // a model or checkpoint on disk is unusable
  kIo,               // reading or writing failed
  kNoSpace,          // the disk is full
  kOutOfMemory,
  kNonFinite,  // NaN or infinity where numbers were expected
  kClosed,     // used after close()
  kAborted,    // abort(reason) ended the work
  kComm,       // a collective or rendezvous failed
  kInternal,   // a bug in Troupe
};

const char* error_code_name(ErrorCode code);  // "INVALID_ARGUMENT", ...

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// fail(ErrorCode::kInvalidArgument, "[packing] expected ", a, " but got ", b)
template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, Parts&&... parts) {
  std::ostringstream text;
  (text << ... << std::forward<Parts>(parts));
  throw Error(code, text.str());
}

template <typename... Parts>
void require(bool ok, ErrorCode code, Parts&&... parts) {
  if (!ok) fail(code, std::forward<Parts>(parts)...);
}

}  // namespace troupe
