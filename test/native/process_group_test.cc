#include "comm/process_group.h"

#include <ATen/ATen.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "comm/rendezvous.h"

// What a communicator makes of the ends of c10d's operations, which are made up here.

using namespace troupe;

namespace {

// An operation that ends as it is told, and keeps its tensors until somebody waits for it, as NCCL's do.
class MadeUpWork final : public c10d::Work {
 public:
  MadeUpWork(std::vector<at::Tensor> tensors, std::function<void()> fault, bool in_exception)
      : tensors_(std::move(tensors)), fault_(std::move(fault)), in_exception_(in_exception) {}

  bool isCompleted() override {
    if (fault_ && !in_exception_) fault_();
    return ++asked_ > 2;
  }
  std::exception_ptr exception() const override {
    if (!fault_ || !in_exception_) return nullptr;
    try {
      fault_();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }
  bool wait(std::chrono::milliseconds) override {
    tensors_.clear();
    return true;
  }

 private:
  std::vector<at::Tensor> tensors_;
  std::function<void()> fault_;
  bool in_exception_;
  int asked_ = 0;
};

struct Plan {
  std::function<void()> fault;  // null: all goes well
  bool in_exception = false;    // told by exception(), not by the question whether it is done
  bool at_start = false;
  std::vector<c10::intrusive_ptr<c10d::Work>> kept;  // as c10d's watchdog keeps them
};

class MadeUpBackend final : public c10d::Backend {
 public:
  explicit MadeUpBackend(Plan& plan) : Backend(0, 2), plan_(plan) {}
  const std::string getBackendName() const override { return "made up"; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    if (plan_.at_start) plan_.fault();
    plan_.kept.push_back(c10::make_intrusive<MadeUpWork>(std::vector<at::Tensor>{output, input}, plan_.fault,
                                                         plan_.in_exception));
    return plan_.kept.back();
  }

 private:
  Plan& plan_;
};

class MadeUpCommunicator final : public ProcessGroupCommunicator {
 public:
  MadeUpCommunicator(const CommOptions& options, Plan& plan)
      : ProcessGroupCommunicator(join(options),
                                 [&](const Member&) { return c10::make_intrusive<MadeUpBackend>(plan); }) {}

 protected:
  std::unique_ptr<Communicator> make_split(Member) const override { return nullptr; }
  std::optional<Failure> wait(c10d::Work& work) override { return poll(work, std::chrono::microseconds(50)); }
};

// What a gather of 4 numbers throws.
struct Outcome {
  ErrorCode code = ErrorCode::kClosed;
  std::string message, again;
  bool freed = false;  // the gathered tensor, once its owner let it go
};

Outcome gather(Plan plan, int64_t port, int64_t rank = 0) {
  CommOptions options;
  options.rank = rank;
  options.size = 2;
  options.port = port;
  options.timeout = std::chrono::milliseconds(2000);
  MadeUpCommunicator comm(options, plan);
  Outcome outcome;
  at::Tensor all = at::zeros({8});
  const auto impl = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(all.storage().unsafeGetStorageImpl());
  try {
    comm.all_gather(all, at::zeros({4}), {"forward", "layers.3"});
  } catch (const Error& error) {
    outcome.code = error.code();
    outcome.message = error.what();
  }
  if (!outcome.message.empty()) {
    try {
      comm.all_gather(all, at::zeros({4}), {"forward", "layers.4"});
    } catch (const Error& error) {
      outcome.again = error.what();
      CHECK(error.code() == outcome.code);
    }
  }
  all = at::Tensor();
  outcome.freed = impl.use_count() == 1;
  return outcome;
}

Outcome gather(Plan plan) {
  const auto rendezvous = Rendezvous::open();
  return gather(std::move(plan), rendezvous->port());
}

// A rendezvous in a process of its own, as rank 0's is for the others.
class OtherProcess {
 public:
  OtherProcess() {
    int ends[2];
    CHECK(::pipe(ends) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto rendezvous = Rendezvous::open();
      const int64_t port = rendezvous->port();
      if (::write(ends[1], &port, sizeof(port)) == sizeof(port)) ::pause();
      ::_exit(1);
    }
    CHECK(::read(ends[0], &port_, sizeof(port_)) == sizeof(port_));
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~OtherProcess() {
    tell(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  int64_t port() const { return port_; }
  void tell(int signal) const { ::kill(pid_, signal); }

 private:
  pid_t pid_ = -1;
  int64_t port_ = 0;
};

const auto cuda_fault = [] { TORCH_CHECK(false, "CUDA error: an illegal memory access was encountered"); };
const auto out_of_memory = [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); };
const auto lost_peer = [] { TORCH_CHECK_WITH(DistBackendError, false, "NCCL error: remote process exited"); };
const auto nccl_saw_cuda = [] {
  TORCH_CHECK_WITH(DistBackendError, false, "NCCL error: unhandled cuda error");
};

}  // namespace

TEST(a_fault_of_this_rank_is_not_a_lost_peer) {
  for (int way = 0; way < 3; ++way) {
    const auto outcome = gather({cuda_fault, way == 1, way == 2, {}});
    CHECK(outcome.code == ErrorCode::kInternal);
    CHECK(outcome.message.find(
              "rank 0: all_gather #1 of layers.3 (forward) failed on this rank itself, not on a peer "
              "(CUDA error: an illegal memory access was encountered") != std::string::npos);
    CHECK(outcome.message.find("peer is gone") == std::string::npos);
    CHECK(outcome.message.find("No sign of") == std::string::npos);
    CHECK(outcome.again == outcome.message);
  }
  CHECK(gather({out_of_memory, false, false, {}}).code == ErrorCode::kOutOfMemory);
  CHECK(gather({nccl_saw_cuda, true, false, {}}).code == ErrorCode::kInternal);
}

TEST(what_the_transport_reports_is_a_lost_peer) {
  for (const bool in_exception : {false, true}) {
    const auto outcome = gather({lost_peer, in_exception, false, {}});
    CHECK(outcome.code == ErrorCode::kComm);
    CHECK(outcome.message.find("failed because a peer is gone (NCCL error: remote process exited") !=
          std::string::npos);
    CHECK(outcome.message.find("No sign of rank 1") != std::string::npos);
  }
}

// Rank 0 is stopped, or the way to it is dead: its connections stay open, and nothing comes through them.
TEST(a_store_that_has_fallen_silent_is_not_waited_for) {
  const OtherProcess other;
  const auto lost = [&] {
    other.tell(SIGSTOP);
    lost_peer();
  };
  std::promise<void> over;
  // Who waits for it learns then that rank 0 has left no word.
  std::thread goes_on([&, until = over.get_future()] {
    if (until.wait_for(std::chrono::seconds(60)) == std::future_status::timeout) other.tell(SIGCONT);
  });
  const auto outcome = gather({lost, true, false, {}}, other.port(), 1);
  over.set_value();
  goes_on.join();
  CHECK(outcome.code == ErrorCode::kComm);
  CHECK(outcome.message.find("No sign of rank 0") != std::string::npos);
  CHECK(outcome.message.find("Last finished: rank 1: none; the others: unknown") != std::string::npos);
  CHECK(outcome.again == outcome.message);
}

TEST(tensors_of_an_operation_that_is_done_are_let_go) {
  const auto outcome = gather({nullptr, false, false, {}});
  CHECK(outcome.message.empty());
  CHECK(outcome.freed);
}

TEST_MAIN()
