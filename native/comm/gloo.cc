// The communicator over Gloo, for CPUs, and for ranks that share a GPU.
#include <sched.h>

#include <condition_variable>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/process_group.h"

namespace troupe {

namespace {

using std::chrono::milliseconds;

// Gloo ends an operation by its own time-out; ours only catches one that it does not see.
constexpr milliseconds kTimeoutSlack{1000};

// While it lives, threads that the caller starts do not preempt others when they wake (SCHED_BATCH). Gloo's
// thread for incoming messages asks the kernel again and again, without sleeping, while another thread holds
// the lock of a connection to send on it. Where it has preempted just that thread, as with more ranks than
// cores, it burns its whole time slice; two thirds of the time of ranks that exchange small messages went
// there. A system that forbids it loses that time and nothing else.
class BatchThreads {
 public:
  BatchThreads() : changed_(sched_getscheduler(0) == SCHED_OTHER && set(SCHED_BATCH)) {}
  ~BatchThreads() {
    if (changed_) set(SCHED_OTHER);
  }
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

 private:
  static bool set(int policy) {
    const sched_param no_priority{};
    return sched_setscheduler(0, policy, &no_priority) == 0;
  }

  const bool changed_;
};

class GlooCommunicator final : public ProcessGroupCommunicator {
 public:
  explicit GlooCommunicator(const CommOptions& options) : GlooCommunicator(join(options)) {}
  explicit GlooCommunicator(Member member) : ProcessGroupCommunicator(std::move(member), make_group) {}

 protected:
  std::unique_ptr<Communicator> make_split(Member member) const override {
    return std::make_unique<GlooCommunicator>(std::move(member));
  }

  std::optional<Failure> wait(c10d::Work& work) override {
    const c10d::OpType type = work.retrieveOpType();
    if (type == c10d::OpType::SEND || type == c10d::OpType::RECV) return wait_message(work);
    const auto done = std::make_shared<bool>(false);
    const auto future = work.getFuture();
    future->addCallback([done, signal = signal_](c10::ivalue::Future&) {
      const std::lock_guard lock(signal->mutex);
      *done = true;
      signal->changed.notify_all();
    });
    std::unique_lock lock(signal_->mutex);
    signal_->changed.wait_for(lock, options().timeout + kTimeoutSlack, [&] { return *done || aborted(); });
    if (!*done) return Failure{true, {}};
    if (future->hasError()) return Failure{false, future->tryRetrieveErrorMessage()};
    return std::nullopt;
  }

  void wake() override {
    const std::lock_guard lock(signal_->mutex);
    if (message_ != nullptr) message_->abort();
    signal_->changed.notify_all();
  }

  // Gloo's messages are host memory only. Copies wait for the work that the device was given before.
  at::Tensor movable(const at::Tensor& x) const override { return x.is_cuda() ? x.cpu() : x; }

 private:
  // A message has no future; what waits for it can be woken.
  std::optional<Failure> wait_message(c10d::Work& work) {
    const auto waiting_for = [&](c10d::Work* message) {
      const std::lock_guard lock(signal_->mutex);
      message_ = message;
      return !aborted();
    };
    std::optional<Failure> failure;
    try {
      if (!waiting_for(&work) || !work.wait(options().timeout)) failure = Failure{true, {}};
    } catch (const std::exception& error) {
      failure = Failure{false, error.what()};
    }
    waiting_for(nullptr);
    return failure;
  }

  static Group make_group(const Member& member) {
    const auto options = c10d::ProcessGroupGloo::Options::create(member.options.timeout);
    options->threads = 1;
    {
      const BatchThreads no_preemption;
      options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(member.options.host)};
    }
    return c10::make_intrusive<c10d::ProcessGroupGloo>(member.store, static_cast<int>(member.options.rank),
                                                       static_cast<int>(member.options.size), options);
  }

  // The end of an operation, told by Gloo's thread; it may come after the communicator is gone.
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
  };
  const std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
  c10d::Work* message_ = nullptr;  // that is waited for; guarded by the signal's mutex
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const CommOptions& options) {
  return std::make_unique<GlooCommunicator>(options);
}

}  // namespace troupe
