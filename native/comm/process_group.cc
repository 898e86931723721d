// Polling with time-outs and abort around c10d, and errors that tell who is missing.
#include "comm/process_group.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "comm/brief_name_queries.h"
#include "comm/rank_reports.h"

namespace troupe {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How long the ranks wait, once a collective has failed, for the others to say where they are.
constexpr milliseconds kReportTime{1500};
// Where every rank reaches the rendezvous store that rank 0 serves; on other hosts the launcher forwards the
// port to rank 0's host.
constexpr const char* kMeetingHost = "127.0.0.1";
constexpr int kMessageTag = 0;  // messages between two ranks keep their order

double seconds(milliseconds time) {
  return static_cast<double>(time.count()) / 1000.0;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

[[noreturn]] void fail_to_join(const CommOptions& options, const std::exception& error) {
  fail(ErrorCode::kComm, "[comm] rank ", options.rank, " of ", options.size, " could not join its group at ",
       kMeetingHost, ":", options.port, " within ", seconds(options.timeout),
       " s: ", first_line(error.what()));
}

// See [Note: message headers].
class Message {
 public:
  explicit Message(const at::Tensor& header)
      : type_(static_cast<at::ScalarType>(header.view(at::kLong).const_data_ptr<int64_t>()[0])),
        count_(header.view(at::kLong).const_data_ptr<int64_t>()[1]) {}
  int64_t bytes() const { return count_ * static_cast<int64_t>(c10::elementSize(type_)); }
  std::string text() const { return std::to_string(count_) + " elements of " + c10::toString(type_); }

 private:
  at::ScalarType type_;
  int64_t count_;
};

}  // namespace

ProcessGroupCommunicator::Member ProcessGroupCommunicator::join(const CommOptions& options) {
  Member member{options, {}, std::vector<int64_t>(static_cast<size_t>(options.size))};
  std::iota(member.names.begin(), member.names.end(), 0);
  try {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<uint16_t>(options.port);
    store_options.waitWorkers = false;
    store_options.timeout = options.timeout;
    const BriefNameQueries brief;
    member.store = c10::make_intrusive<c10d::PrefixStore>(
        options.token, c10::make_intrusive<c10d::TCPStore>(kMeetingHost, store_options));
  } catch (const std::exception& error) {
    fail_to_join(options, error);
  }
  return member;
}

ProcessGroupCommunicator::ProcessGroupCommunicator(Member member,
                                                   const std::function<Group(const Member&)>& make)
    : Communicator(member.options.rank, member.options.size), member_(std::move(member)) {
  try {
    group_ = make(member_);
  } catch (const std::exception& error) {
    fail_to_join(member_.options, error);
  }
}

std::unique_ptr<Communicator> ProcessGroupCommunicator::split(const std::string& name,
                                                              const std::vector<int64_t>& ranks) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  require(own != ranks.end(), ErrorCode::kInternal, "[comm] rank ", rank(), " is not in the split ", name);
  if (ranks.size() == 1) return make_local_communicator();
  Member part{member_.options, c10::make_intrusive<c10d::PrefixStore>(name, member_.store), {}};
  part.options.rank = own - ranks.begin();
  part.options.size = static_cast<int64_t>(ranks.size());
  for (const int64_t r : ranks) part.names.push_back(member_.names[static_cast<size_t>(r)]);
  return make_split(std::move(part));
}

void ProcessGroupCommunicator::abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = reason;
    aborted_ = true;
  }
  wake();
}

std::function<void()> ProcessGroupCommunicator::begin_all_gather(const at::Tensor& output,
                                                                 const at::Tensor& input) {
  at::Tensor out = movable(output), in = movable(input);
  const int64_t sequence = begin([&] { return group_->_allgather_base(out, in); });
  return [this, sequence, output, out, in] {
    finish(sequence);
    if (!out.is_same(output)) output.copy_(out);
  };
}

std::function<void()> ProcessGroupCommunicator::begin_all_to_all(const at::Tensor& output,
                                                                 const at::Tensor& input) {
  at::Tensor out = movable(output), in = movable(input);
  const int64_t sequence = begin([&] {
    std::vector<int64_t> even;
    return group_->alltoall_base(out, in, even, even);
  });
  return [this, sequence, output, out, in] {
    finish(sequence);
    if (!out.is_same(output)) output.copy_(out);
  };
}

void ProcessGroupCommunicator::move_broadcast(const at::Tensor& tensor, int64_t root) {
  std::vector<at::Tensor> tensors{movable(tensor)};
  finish(begin([&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return group_->broadcast(tensors, options);
  }));
  if (!tensors[0].is_same(tensor)) tensor.copy_(tensors[0]);
}

void ProcessGroupCommunicator::move_send(const at::Tensor& header, const at::Tensor& tensor, int64_t dst) {
  std::vector<at::Tensor> parts{movable(header)};
  if (tensor.numel() > 0) parts.push_back(movable(tensor));
  for (const at::Tensor& part : parts) {
    std::vector<at::Tensor> tensors{part};
    begin([&] { return group_->send(tensors, static_cast<int>(dst), kMessageTag); });
  }
  finish(log().begun());
}

void ProcessGroupCommunicator::move_recv(const at::Tensor& header, const at::Tensor& tensor, int64_t src) {
  const int64_t sequence = log().begun();
  const at::Tensor sent = at::empty_like(header);
  take(sent, src);
  if (!sent.equal(header)) {
    const Message message(sent);
    if (message.bytes() > 0) take(at::empty({message.bytes()}, at::kByte), src);
    fail(ErrorCode::kInternal, "[comm] ", name_of(rank()), ": ", log().describe(sequence), " expected ",
         Message(header).text(), ", got ", message.text());
  }
  if (tensor.numel() > 0) take(tensor, src);
}

void ProcessGroupCommunicator::take(const at::Tensor& tensor, int64_t src) {
  std::vector<at::Tensor> tensors{movable(tensor)};
  finish(begin([&] { return group_->recv(tensors, static_cast<int>(src), kMessageTag); }));
  if (!tensors[0].is_same(tensor)) tensor.copy_(tensors[0]);
}

int64_t ProcessGroupCommunicator::begin(const std::function<c10::intrusive_ptr<c10d::Work>()>& start) {
  const int64_t sequence = log().begun();
  check_working(sequence);
  Failure failure;
  try {
    under_way_.push_back({sequence, start()});
    return sequence;
  } catch (const std::exception&) {
    failure = caught();
  }
  give_up(sequence, failure);
}

// c10d throws DistError for failures of its transport. Any other c10::Error is about this rank's own device,
// memory or arguments. Exceptions that are no c10::Error come from threads of the transport.
ProcessGroupCommunicator::Failure ProcessGroupCommunicator::caught() {
  try {
    throw;
  } catch (const c10::DistError& error) {
    // With these words NCCL reports a CUDA error of this very rank.
    const bool own = std::string(error.what()).find("nhandled cuda error") != std::string::npos;
    return {false, error.what_without_backtrace(), own, own ? ErrorCode::kInternal : ErrorCode::kComm};
  } catch (const c10::OutOfMemoryError& error) {
    return {false, error.what_without_backtrace(), true, ErrorCode::kOutOfMemory};
  } catch (const c10::Error& error) {
    return {false, error.what_without_backtrace(), true, ErrorCode::kInternal};
  } catch (const std::exception& error) {
    return {false, error.what()};
  }
}

std::optional<ProcessGroupCommunicator::Failure> ProcessGroupCommunicator::poll(
    c10d::Work& work, std::chrono::microseconds interval) {
  const auto deadline = Clock::now() + options().timeout;
  while (!work.isCompleted()) {
    if (aborted() || Clock::now() > deadline) return Failure{true, {}};
    std::this_thread::sleep_for(interval);
  }
  if (const std::exception_ptr error = work.exception()) std::rethrow_exception(error);
  // Returns at once. c10d keeps an operation's tensors until somebody has waited for it.
  work.wait();
  return std::nullopt;
}

void ProcessGroupCommunicator::finish(int64_t sequence) {
  while (!under_way_.empty() && under_way_.front().sequence <= sequence) {
    const Operation& first = under_way_.front();
    check_working(first.sequence);
    std::optional<Failure> failure;
    try {
      failure = wait(*first.work);
    } catch (const std::exception&) {
      failure = caught();
    }
    if (failure) give_up(first.sequence, *failure);
    under_way_.pop_front();
  }
}

void ProcessGroupCommunicator::check_working(int64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) fail_again(sequence);
}

void ProcessGroupCommunicator::give_up(int64_t sequence, const Failure& failure) {
  cancel();
  const std::string text = aborted_ ? std::string() : describe(sequence, failure);
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) {
    failure_ = text;
    failure_code_ = failure.code;
  }
  fail_again(sequence);
}

void ProcessGroupCommunicator::fail_again(int64_t sequence) const {
  require(!aborted_, ErrorCode::kAborted, "[comm] aborted in ", log().describe(sequence), ": ", failure_);
  throw Error(failure_code_, failure_);
}

std::string ProcessGroupCommunicator::name_of(int64_t rank) const {
  return "rank " + std::to_string(known_as(rank));
}

std::string ProcessGroupCommunicator::describe(int64_t sequence, const Failure& failure) {
  // Gloo and NCCL have time-outs of their own, whose exceptions contain this text.
  const bool late = failure.late || (!failure.own && failure.cause.find("imed out") != std::string::npos);
  std::ostringstream text;
  text << "[comm] " << name_of(rank()) << ": " << log().describe(sequence);
  if (late) {
    text << " did not complete within " << seconds(options().timeout) << " s";
  } else if (failure.own) {
    text << " failed on this rank itself, not on a peer (" << first_line(failure.cause) << ")";
  } else {
    text << " failed because a peer is gone (" << first_line(failure.cause) << ")";
  }
  std::string own = log().describe(log().finished());
  if (failure.own) own += " (then it failed itself: " + first_line(failure.cause) + ")";
  std::string finished = name_of(rank()) + ": " + own;
  // A message concerns two ranks. The others may be busy with something else and are not named as missing.
  const CollectiveLog::Entry* entry = log().find(sequence);
  const int64_t peer = entry != nullptr ? entry->peer : -1;
  const milliseconds time = failure.own ? milliseconds(0) : std::min(kReportTime, options().timeout);
  const RankReports reports =
      exchange_reports(member_.store, rank(), size(), own, time, [this] { return aborted(); });
  std::string missing;
  for (int64_t r = 0; r < size(); ++r) {
    const std::string name = name_of(r);
    if (const std::optional<std::string>& report = reports.of_rank[static_cast<size_t>(r)]) {
      finished += "; " + name + ": " + *report;
    } else if (r != rank() && reports.complete) {
      if (!failure.own && (peer < 0 || peer == known_as(r))) missing += (missing.empty() ? "" : ", ") + name;
      finished += "; " + name + ": unknown";
    }
  }
  if (!reports.complete) {
    if (!failure.own) missing = "rank 0";  // of the whole group: it serves the store
    finished += "; the others: unknown";
  }
  if (!missing.empty()) text << ". No sign of " << missing << ": dead, stopped, or busy with something else";
  text << ". Last finished: " << finished;
  return text.str();
}

}  // namespace troupe
