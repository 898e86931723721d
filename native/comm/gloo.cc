#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "core/error.h"

namespace troupe {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Gloo ends an operation by its own time-out; ours only catches one that it does not see.
constexpr milliseconds kTimeoutSlack{1000};
// How long the ranks wait, once a collective has failed, for the others to say where they are.
constexpr milliseconds kReportTime{1500};
constexpr milliseconds kReportPoll{20};

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// The end of an operation, told by Gloo's thread; it may come after the communicator is gone.
struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

struct Operation {
  int64_t sequence = 0;  // in the log
  std::shared_ptr<Completion> completion = std::make_shared<Completion>();
  c10::intrusive_ptr<c10::ivalue::Future> future;
};

class GlooCommunicator final : public Communicator {
 public:
  // names: the rank by which each member is known to the outside.
  GlooCommunicator(const CommOptions& options, c10::intrusive_ptr<c10d::Store> store,
                   std::vector<int64_t> names)
      : Communicator(options.rank, options.size),
        options_(options),
        timeout_(options.timeout),
        store_(std::move(store)),
        names_(std::move(names)) {
    try {
      const auto group_options = c10d::ProcessGroupGloo::Options::create(timeout_);
      group_options->threads = 1;
      group_options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(options.host)};
      group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, static_cast<int>(rank()),
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
    std::vector<int64_t> names;
    for (const int64_t r : ranks) names.push_back(names_[static_cast<size_t>(r)]);
    return std::make_unique<GlooCommunicator>(options, c10::make_intrusive<c10d::PrefixStore>(name, store_),
                                              std::move(names));
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
    aborted_ = true;
    if (running_) {
      const std::lock_guard running(running_->mutex);
      running_->changed.notify_all();
    }
  }

 protected:
  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    const int64_t sequence = begin([&] {
      at::Tensor out = output, in = input;
      return group_->_allgather_base(out, in);
    });
    return [this, sequence] { finish(sequence); };
  }

  void move_all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    finish(begin([&] {
      at::Tensor out = output, in = input;
      std::vector<int64_t> even;
      return group_->alltoall_base(out, in, even, even);
    }));
  }

  void move_broadcast(const at::Tensor& tensor, int64_t root) override {
    finish(begin([&] {
      std::vector<at::Tensor> tensors{tensor};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    }));
  }

 private:
  // The collective that the log counts last; its sequence number.
  template <typename Start>
  int64_t begin(Start start) {
    const int64_t sequence = log().begun();
    check_working(sequence);
    std::string cause;
    try {
      Operation operation;
      operation.sequence = sequence;
      operation.future = start()->getFuture();
      operation.future->addCallback([completion = operation.completion](c10::ivalue::Future&) {
        const std::lock_guard lock(completion->mutex);
        completion->done = true;
        completion->changed.notify_all();
      });
      under_way_.push_back(std::move(operation));
      return sequence;
    } catch (const std::exception& error) {
      cause = error.what();
    }
    give_up(sequence, cause);
  }

  // Gloo's one thread runs operations in their order: those before `sequence` end before it, and one that
  // fails is named, not the one behind it that was waited for.
  void finish(int64_t sequence) {
    while (!under_way_.empty() && under_way_.front().sequence <= sequence) {
      await(under_way_.front());
      under_way_.pop_front();
    }
  }

  void await(const Operation& operation) {
    const auto& completion = operation.completion;
    {
      const std::lock_guard lock(mutex_);
      running_ = completion;
    }
    check_working(operation.sequence);
    std::string cause;
    {
      std::unique_lock lock(completion->mutex);
      const bool ended = completion->changed.wait_for(lock, timeout_ + kTimeoutSlack,
                                                      [&] { return completion->done || aborted_; });
      if (ended && completion->done && !operation.future->hasError()) return;
      if (completion->done) {
        cause = operation.future->tryRetrieveErrorMessage();
      } else if (!ended) {
        cause = "Timed out";
      }
    }
    give_up(operation.sequence, cause);
  }

  void check_working(int64_t sequence) {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) fail_again(sequence);
  }

  [[noreturn]] void give_up(int64_t sequence, const std::string& cause) {
    const std::string text = aborted_ ? std::string() : describe_failure(sequence, cause);
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = text;
    fail_again(sequence);
  }

  [[noreturn]] void fail_again(int64_t sequence) const {
    require(!aborted_, ErrorCode::kAborted, "[comm] aborted in ", log().describe(sequence), ": ", failure_);
    throw Error(ErrorCode::kComm, failure_);
  }

  static std::string key(int64_t rank) { return "troupe/failed/" + std::to_string(rank); }

  // Tells the others where this rank is and asks where they are.
  std::string describe_failure(int64_t sequence, const std::string& cause) {
    const bool late = cause.find("imed out") != std::string::npos;
    const auto name_of = [this](int64_t r) {
      return "rank " + std::to_string(names_[static_cast<size_t>(r)]);
    };
    std::string text = "[comm] " + name_of(rank()) + ": " + log().describe(sequence);
    if (late) {
      std::ostringstream seconds;
      seconds << static_cast<double>(timeout_.count()) / 1000.0;
      text += " did not complete within " + seconds.str() + " s";
    } else {
      text += " failed because a peer is gone (" + first_line(cause) + ")";
    }
    const std::string own = log().describe(log().finished());
    std::string finished = name_of(rank()) + ": " + own;
    std::string missing;
    try {
      store_->set(key(rank()), std::vector<uint8_t>(own.begin(), own.end()));
      const auto deadline = Clock::now() + std::min(kReportTime, timeout_);
      for (int64_t r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        const std::string name = name_of(r);
        while (!store_->check({key(r)}) && Clock::now() < deadline && !aborted_) {
          std::this_thread::sleep_for(kReportPoll);
        }
        if (store_->check({key(r)})) {
          const auto value = store_->get(key(r));
          finished += "; " + name + ": " + std::string(value.begin(), value.end());
        } else {
          missing += (missing.empty() ? "" : ", ") + name;
          finished += "; " + name + ": unknown";
        }
      }
    } catch (const std::exception&) {
      missing = "rank 0";  // of the whole group: it serves the store
      finished += "; the others: unknown";
    }
    if (!missing.empty()) text += ". No sign of " + missing + ": dead, stopped, or busy with something else";
    return text + ". Last finished: " + finished;
  }

  const CommOptions options_;
  const milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<int64_t> names_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;

  std::mutex mutex_;
  std::atomic<bool> aborted_{false};
  std::string failure_;  // why nothing works any more
  std::shared_ptr<Completion> running_;
  std::deque<Operation> under_way_;  // begun and not waited for, in order
};

// A socket that listens on 127.0.0.1; left to itself TCPStore would listen on all interfaces.
int listen_on_loopback(uint16_t& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || ::bind(fd, generic, length) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, generic, &length) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    fail(ErrorCode::kComm, "[comm] cannot listen on 127.0.0.1: ", std::strerror(error));
  }
  port = ntohs(address.sin_port);
  return fd;
}

class StoreRendezvous final : public Rendezvous {
 public:
  StoreRendezvous() {
    c10d::TCPStoreOptions options;
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = listen_on_loopback(options.port);
    try {
      store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    } catch (const std::exception& error) {
      fail(ErrorCode::kComm, "[comm] cannot serve the rendezvous: ", first_line(error.what()));
    }
  }
  int64_t port() const override { return store_->getPort(); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::unique_ptr<Rendezvous> Rendezvous::open() {
  return std::make_unique<StoreRendezvous>();
}

std::unique_ptr<Communicator> make_gloo_communicator(const CommOptions& options) {
  c10::intrusive_ptr<c10d::Store> store;
  try {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<uint16_t>(options.port);
    store_options.waitWorkers = false;
    store_options.timeout = options.timeout;
    store = c10::make_intrusive<c10d::PrefixStore>(
        options.token, c10::make_intrusive<c10d::TCPStore>(options.host, store_options));
  } catch (const std::exception& error) {
    GlooCommunicator::fail_to_join(options, error);
  }
  std::vector<int64_t> names(static_cast<size_t>(options.size));
  std::iota(names.begin(), names.end(), 0);
  return std::make_unique<GlooCommunicator>(options, std::move(store), std::move(names));
}

}  // namespace troupe
