#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/communicator.h"
#include "core/error.h"

namespace troupe {

namespace {

using Clock = std::chrono::steady_clock;

// [Note: streams] c10d runs the collectives of a group on a stream of its own, in their order. That stream
// first waits for what the caller's stream had been given when the collective began: what makes the input
// (or last used the output's memory) is done by then, while work that is given to the caller's stream later
// runs beside it. A collective is done when the host has seen it end, so that what it wrote can be used on
// any stream and its tensors may be freed.
constexpr std::chrono::microseconds kPoll{50};

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// LibTorch's own watchdogs would end the process on a time-out before anyone could say what hung.
void leave_failures_to_us() {
  for (const char* name : {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"}) {
    ::setenv(name, "0", /*overwrite=*/0);
  }
}

class NcclCommunicator final : public Communicator {
 public:
  // name: the rank by which this member is known to the outside.
  NcclCommunicator(const CommOptions& options, c10::intrusive_ptr<c10d::Store> store, int64_t name)
      : Communicator(options.rank, options.size), options_(options), store_(std::move(store)), name_(name) {
    try {
      const auto group_options = c10d::ProcessGroupNCCL::Options::create();
      group_options->timeout = options.timeout;
      group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store_, static_cast<int>(rank()),
                                                           static_cast<int>(size()), group_options);
    } catch (const std::exception& error) {
      fail_to_join(options, error);
    }
  }

  std::unique_ptr<Communicator> split(const std::string& name, const std::vector<int64_t>& ranks) override {
    const auto own = std::find(ranks.begin(), ranks.end(), rank());
    require(own != ranks.end(), ErrorCode::kInternal, "[comm] rank ", rank(), " is not in the split ", name);
    CommOptions options = options_;
    options.rank = own - ranks.begin();
    options.size = static_cast<int64_t>(ranks.size());
    if (options.size == 1) return make_local_communicator();
    return std::make_unique<NcclCommunicator>(options, c10::make_intrusive<c10d::PrefixStore>(name, store_),
                                              name_);
  }

  [[noreturn]] static void fail_to_join(const CommOptions& options, const std::exception& error) {
    fail(ErrorCode::kComm, "[comm] rank ", options.rank, " of ", options.size,
         " could not join its group at ", options.host, ":", options.port, " within ",
         static_cast<double>(options.timeout.count()) / 1000.0, " s: ", first_line(error.what()));
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = reason;
    aborted_ = true;  // the thread in a collective sees it
  }

 protected:
  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    at::Tensor out = on_device(output), in = on_device(input);
    const int64_t sequence = begin([&] { return group_->_allgather_base(out, in); });
    return [this, sequence, output, out, in] {
      finish(sequence);
      if (!output.is_cuda()) output.copy_(out);
    };
  }

  void move_all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    at::Tensor out = on_device(output), in = on_device(input);
    finish(begin([&] {
      std::vector<int64_t> even;
      return group_->alltoall_base(out, in, even, even);
    }));
    if (!output.is_cuda()) output.copy_(out);
  }

  void move_broadcast(const at::Tensor& tensor, int64_t root) override {
    std::vector<at::Tensor> tensors{on_device(tensor)};
    finish(begin([&] {
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    }));
    if (!tensor.is_cuda()) tensor.copy_(tensors[0]);
  }

 private:
  // NCCL moves device memory only; numbers that live on the host, as those of a barrier, are few.
  static at::Tensor on_device(const at::Tensor& x) { return x.is_cuda() ? x : x.to(at::kCUDA); }

  struct Operation {
    int64_t sequence = 0;  // in the log
    c10::intrusive_ptr<c10d::Work> work;
  };

  // The collective that the log counts last; its sequence number.
  template <typename Start>
  int64_t begin(Start start) {
    const int64_t sequence = log().begun();
    check_working(sequence);
    std::string cause;
    try {
      under_way_.push_back({sequence, start()});
      return sequence;
    } catch (const std::exception& error) {
      cause = error.what();
    }
    give_up(sequence, cause);
  }

  // Those before `sequence` end before it: [Note: streams].
  void finish(int64_t sequence) {
    while (!under_way_.empty() && under_way_.front().sequence <= sequence) {
      await(under_way_.front());
      under_way_.pop_front();
    }
  }

  void await(const Operation& operation) {
    check_working(operation.sequence);
    std::string cause;
    try {
      const auto deadline = Clock::now() + options_.timeout;
      while (!operation.work->isCompleted()) {
        if (aborted_ || Clock::now() > deadline) break;
        std::this_thread::sleep_for(kPoll);
      }
      if (operation.work->isCompleted()) {
        const std::exception_ptr error = operation.work->exception();
        if (!error) return;
        std::rethrow_exception(error);
      }
    } catch (const std::exception& error) {
      cause = error.what();
    }
    give_up(operation.sequence, cause);
  }

  void check_working(int64_t sequence) {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) fail_again(sequence);
  }

  [[noreturn]] void give_up(int64_t sequence, const std::string& cause) {
    // Whatever still runs on the GPU ends; it would wait for its peers for ever.
    group_->abort();
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) {
      std::ostringstream text;
      text << "[comm] rank " << name_ << ": " << log().describe(sequence);
      if (cause.empty()) {
        text << " did not complete within " << static_cast<double>(options_.timeout.count()) / 1000.0 << " s";
      } else {
        text << " failed (" << first_line(cause) << ")";
      }
      text << ". Last finished: rank " << name_ << ": " << log().describe(log().finished());
      failure_ = text.str();
    }
    fail_again(sequence);
  }

  [[noreturn]] void fail_again(int64_t sequence) const {
    require(!aborted_, ErrorCode::kAborted, "[comm] aborted in ", log().describe(sequence), ": ", failure_);
    throw Error(ErrorCode::kComm, failure_);
  }

  const CommOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;

  const int64_t name_;

  std::mutex mutex_;
  std::atomic<bool> aborted_{false};
  std::string failure_;              // why nothing works any more
  std::deque<Operation> under_way_;  // begun and not waited for, in order
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const CommOptions& options) {
  require(c10::cuda::device_count() > 0, ErrorCode::kComm, "[comm] rank ", options.rank,
          " cannot use NCCL: CUDA sees no GPU; `troupe doctor` says why");
  leave_failures_to_us();
  c10::intrusive_ptr<c10d::Store> store;
  try {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<uint16_t>(options.port);
    store_options.waitWorkers = false;
    store_options.timeout = options.timeout;
    store = c10::make_intrusive<c10d::PrefixStore>(
        options.token, c10::make_intrusive<c10d::TCPStore>(options.host, store_options));
  } catch (const std::exception& error) {
    NcclCommunicator::fail_to_join(options, error);
  }
  return std::make_unique<NcclCommunicator>(options, std::move(store), options.rank);
}

}  // namespace troupe
