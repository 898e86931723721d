// Error codes as the words that TypeScript knows.
#include "base/error.h"

namespace troupe {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "INVALID_ARGUMENT";
    case ErrorCode::kInvalidModel: return "INVALID_MODEL";
    case ErrorCode::kIo: return "IO";
    case ErrorCode::kNoSpace: return "NO_SPACE";
    case ErrorCode::kOutOfMemory: return "OUT_OF_MEMORY";
    case ErrorCode::kNonFinite: return "NON_FINITE";
    case ErrorCode::kClosed: return "CLOSED";
    case ErrorCode::kAborted: return "ABORTED";
    case ErrorCode::kComm: return "COMM";
    case ErrorCode::kInternal: return "INTERNAL";
  }
  return "INTERNAL";
}

}  // namespace troupe
