// The communicator over NCCL, for GPUs.
#include <c10/cuda/CUDAFunctions.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "base/error.h"
#include "comm/process_group.h"

namespace troupe {

namespace {

// [Note: streams] c10d runs the collectives of a group on a stream of its own, in their order. That stream
// first waits for what the caller's stream had been given when the collective began: what makes the input
// (or last used the output's memory) is done by then, while work that is given to the caller's stream later
// runs beside it. A collective is done when the host has seen it end, so that what it wrote can be used on
// any stream and its tensors may be freed.
constexpr std::chrono::microseconds kPoll{50};

// LibTorch's own watchdogs would end the process on a time-out before anyone could say what hung.
void leave_failures_to_us() {
  for (const char* name : {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"}) {
    ::setenv(name, "0", /*overwrite=*/0);
  }
}

class NcclCommunicator final : public ProcessGroupCommunicator {
 public:
  explicit NcclCommunicator(const CommOptions& options) : NcclCommunicator(join(options)) {}
  explicit NcclCommunicator(Member member) : ProcessGroupCommunicator(std::move(member), make_group) {}

 protected:
  std::unique_ptr<Communicator> make_split(Member member) const override {
    return std::make_unique<NcclCommunicator>(std::move(member));
  }

  std::optional<Failure> wait(c10d::Work& work) override { return poll(work, kPoll); }

  void cancel() override { group()->abort(); }

  // NCCL moves device memory only; numbers that live on the host, as those of a barrier, are few.
  at::Tensor movable(const at::Tensor& x) const override { return x.is_cuda() ? x : x.to(at::kCUDA); }

 private:
  static Group make_group(const Member& member) {
    const auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = member.options.timeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(member.store, static_cast<int>(member.options.rank),
                                                       static_cast<int>(member.options.size), options);
  }
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const CommOptions& options) {
  require(c10::cuda::device_count() > 0, ErrorCode::kComm, "[comm] rank ", options.rank,
          " cannot use NCCL: CUDA sees no GPU; `troupe doctor` says why");
  leave_failures_to_us();
  return std::make_unique<NcclCommunicator>(options);
}

}  // namespace troupe
