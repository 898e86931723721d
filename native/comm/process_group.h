// What the communicators over c10d share.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace troupe {

// Collectives of a c10d process group, whatever it moves bytes with: how its ranks come together, what waits
// for an operation, and what is said when one fails.
class ProcessGroupCommunicator : public Communicator {
 public:
  std::unique_ptr<Communicator> split(const std::string& name, const std::vector<int64_t>& ranks) final;
  void abort(const std::string& reason) final;

 protected:
  using Group = c10::intrusive_ptr<c10d::Backend>;

  // Where and as whom a rank meets the others.
  struct Member {
    CommOptions options;
    c10::intrusive_ptr<c10d::Store> store;
    std::vector<int64_t> names;  // the rank by which each member is known to the outside
  };
  // At the rendezvous of `options`. kComm when it is not there.
  static Member join(const CommOptions& options);
  // Why an operation has not done its work: another rank's fault as far as can be told from here, or this
  // one's.
  struct Failure {
    bool late = false;  // nothing has come within the time-out
    std::string cause;
    bool own = false;  // this rank's device, memory or call failed
    ErrorCode code = ErrorCode::kComm;
  };

  // make: the group, once all ranks have joined; what it throws becomes kComm.
  ProcessGroupCommunicator(Member member, const std::function<Group(const Member&)>& make);

  virtual std::unique_ptr<Communicator> make_split(Member member) const = 0;
  // Waits for the end of an operation, at most for the time-out; none: it has done its work. Returns at once
  // after wake(), with whatever.
  virtual std::optional<Failure> wait(c10d::Work& work) = 0;
  // The same for operations that are asked now and then whether they are done.
  std::optional<Failure> poll(c10d::Work& work, std::chrono::microseconds interval);
  // abort() has been called, from another thread.
  virtual void wake() {}
  // After a failure: ends what still runs and would wait for its peers for ever.
  virtual void cancel() {}
  // The tensor, or a copy of it that the group can move.
  virtual at::Tensor movable(const at::Tensor& x) const { return x; }

  const CommOptions& options() const { return member_.options; }
  bool aborted() const { return aborted_; }
  const Group& group() const { return group_; }

  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) final;
  std::function<void()> begin_all_to_all(const at::Tensor& output, const at::Tensor& input) final;
  void move_broadcast(const at::Tensor& tensor, int64_t root) final;
  void move_send(const at::Tensor& header, const at::Tensor& tensor, int64_t dst) final;
  void move_recv(const at::Tensor& header, const at::Tensor& tensor, int64_t src) final;
  int64_t known_as(int64_t rank) const final { return member_.names[static_cast<size_t>(rank)]; }

 private:
  struct Operation {
    int64_t sequence = 0;  // in the log
    c10::intrusive_ptr<c10d::Work> work;
  };

  // Part of what the log counts last; its sequence number.
  int64_t begin(const std::function<c10::intrusive_ptr<c10d::Work>()>& start);
  // A group runs its operations in their order: those before `sequence` end before it, and one that fails is
  // named, not the one behind it that was waited for.
  void finish(int64_t sequence);
  void check_working(int64_t sequence);
  [[noreturn]] void give_up(int64_t sequence, const Failure& failure);
  [[noreturn]] void fail_again(int64_t sequence) const;
  // Tells the others where this rank is and asks where they are.
  std::string describe(int64_t sequence, const Failure& failure);
  // What the current exception says of an operation of the group.
  static Failure caught();
  std::string name_of(int64_t rank) const;

  // All of `tensor` from `src`, as the next message or part of one.
  void take(const at::Tensor& tensor, int64_t src);

  const Member member_;
  Group group_;
  std::deque<Operation> under_way_;  // begun and not waited for, in order

  std::mutex mutex_;
  std::atomic<bool> aborted_{false};
  std::string failure_;  // why nothing works any more
  ErrorCode failure_code_ = ErrorCode::kComm;
};

}  // namespace troupe
