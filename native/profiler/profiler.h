// A profile of one thread: LibTorch's own profiler (Kineto), written as a Chrome trace.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string>

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace troupe {

struct ProfileOptions {
  bool cuda = false;    // kernels and copies of the GPU, too; nothing where there is none
  bool shapes = false;  // of the inputs of operations
  bool memory = false;  // what LibTorch's allocators give out and take back
};

// Whether the LibTorch at hand has a profiler: it may be built without.
bool has_profiler();

// Before the first start(), on the thread that has loaded LibTorch: Kineto complains of any other, and looks
// only now at what it may say. kInvalidArgument where there is no profiler, and while a profile is running.
void prepare_profiler(const ProfileOptions& options);

// Records from start() to stop(), both on one thread, whose operations and ranges (base/range.h) it is of.
// One at a time in a process; kInvalidArgument otherwise.
class Profiler {
 public:
  Profiler() = default;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  void start(const ProfileOptions& options);
  // Writes JSON to `path`, in place of what is there; kIo when that fails.
  void stop(const std::string& path);
  // What was recorded is lost. Nothing without a profile.
  void drop();
  // A range from here to leave(), around those that begin meanwhile. Nothing without a profile.
  void enter(const std::string& name);
  void leave();

 private:
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> end();

  bool running_ = false;
  bool cuda_ = false;
  std::unique_ptr<at::RecordFunction> range_;
};

}  // namespace troupe
