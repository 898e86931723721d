// Kineto, started and stopped.
#include "profiler/profiler.h"

#include <ATen/Version.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "base/error.h"

namespace troupe {

namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// Of Kineto's log errors alone, unless somebody has asked for more.
constexpr const char* kErrors = "6";

std::set<ActivityType> activities_of(const ProfileOptions& options) {
  std::set<ActivityType> activities{ActivityType::CPU};
  if (options.cuda && at::hasCUDA()) activities.insert(ActivityType::CUDA);
  return activities;
}

// Kineto records one profile of a process at a time: a second one, of whatever thread, would end the first.
class Turn {
 public:
  Turn() {
    require(!taken().exchange(true), ErrorCode::kInvalidArgument,
            "[profiler] a profile is running already in this process: stop it first");
  }
  ~Turn() {
    if (!kept_) give_back();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  void keep() { kept_ = true; }
  static void give_back() { taken() = false; }

 private:
  static std::atomic<bool>& taken() {
    static std::atomic<bool> taken{false};
    return taken;
  }
  bool kept_ = false;
};

void enable(const ProfileOptions& options) {
  const ProfilerConfig config(ProfilerState::KINETO, options.shapes, options.memory);
  torch::autograd::profiler::prepareProfiler(config, activities_of(options));
  torch::autograd::profiler::enableProfiler(config, activities_of(options));
}

// Kineto says on its log alone that it could not write, and leaves what it has written: a whole trace ends
// with its brace.
bool ends_with_brace(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file || std::fseek(file.get(), -16, SEEK_END) != 0) return false;
  int last = 0;
  for (int c = std::fgetc(file.get()); c != EOF; c = std::fgetc(file.get())) {
    if (c != '\n' && c != ' ') last = c;
  }
  return last == '}';
}

}  // namespace

bool has_profiler() {
  // The headers tell what this code is compiled with; what it runs with is known from how that was compiled.
  return at::get_cxx_flags().find("-DUSE_KINETO") != std::string::npos;
}

void prepare_profiler(const ProfileOptions& options) {
  require(has_profiler(), ErrorCode::kInvalidArgument,
          "[profiler] the LibTorch at hand was built without a profiler (Kineto): expected one built with "
          "USE_KINETO=1, as those that pip installs are");
  const Turn turn;
  setenv("KINETO_LOG_LEVEL", kErrors, /*replace=*/0);
  enable(options);
  torch::autograd::profiler::disableProfiler();
}

void Profiler::start(const ProfileOptions& options) {
  require(!running_, ErrorCode::kInvalidArgument, "[profiler] a profile is running already: stop it first");
  cuda_ = options.cuda && at::hasCUDA();
  Turn turn;
  enable(options);
  turn.keep();
  running_ = true;
}

std::unique_ptr<torch::autograd::profiler::ProfilerResult> Profiler::end() {
  const struct Over {
    ~Over() { Turn::give_back(); }
  } over;  // whatever is thrown
  running_ = false;
  range_.reset();
  // What the device has not done yet would be missing.
  if (cuda_) c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).synchronizeDevice(/*device_index=*/0);
  return torch::autograd::profiler::disableProfiler();
}

void Profiler::stop(const std::string& path) {
  require(running_, ErrorCode::kInvalidArgument, "[profiler] no profile is running: start one first");
  end()->save(path);
  require(ends_with_brace(path), ErrorCode::kIo, "[profiler] could not write the trace to ", path,
          ": is there space, and may this process write there?");
}

void Profiler::drop() {
  if (running_) end();
}

void Profiler::enter(const std::string& name) {
  if (!running_) return;
  range_.reset();
  range_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  range_->before(name);
}

void Profiler::leave() {
  range_.reset();
}

}  // namespace troupe
