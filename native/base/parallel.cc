// The number of compute threads, checked.
#include "base/parallel.h"

#include "base/error.h"

namespace troupe {

void set_num_threads(int64_t count) {
  require(count >= 0 && count <= kMaxThreads, ErrorCode::kInvalidArgument,
          "[engine] expected a number of threads (numThreads) from 0 (LibTorch's choice) to ", kMaxThreads,
          ", got ", count, ": more threads than cores make nothing faster");
  if (count > 0) at::set_num_threads(static_cast<int>(count));
}

}  // namespace troupe
