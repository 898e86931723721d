// A communicator without peers, for simulation.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"

namespace troupe {

// One rank of a group whose other ranks are not there, as c10d's FakeProcessGroup is: every collective
// completes at once. An all_gather yields this rank's part from every rank; recv leaves its tensor as it is.
// Works on meta tensors, which have shapes and no memory. (c10d's own class is not used: its header needs
// Python's.)
class FakeCommunicator final : public Communicator {
 public:
  // A call, with the name of the split that it was made on; empty: of the whole group.
  struct Call : CollectiveLog::Entry {
    std::string group;
  };
  using Calls = std::vector<Call>;

  // `calls` gets every collective and message of this communicator and of its splits, in order.
  // stages_gathers: an all_gather holds memory of the size of its output until it ends, as c10d's Gloo does.
  FakeCommunicator(int64_t rank, int64_t size, std::shared_ptr<Calls> calls, bool stages_gathers = false)
      : Communicator(rank, size), calls_(std::move(calls)), stages_gathers_(stages_gathers) {}
  std::unique_ptr<Communicator> split(const std::string& name, const std::vector<int64_t>& ranks) override;
  void abort(const std::string&) override {}

 protected:
  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) override;
  std::function<void()> begin_all_to_all(const at::Tensor& output, const at::Tensor& input) override;
  void move_broadcast(const at::Tensor& tensor, int64_t root) override;
  void move_send(const at::Tensor& header, const at::Tensor& tensor, int64_t dst) override;
  void move_recv(const at::Tensor& header, const at::Tensor& tensor, int64_t src) override;

 private:
  void record() { calls_->push_back({log().latest(), group_}); }

  std::shared_ptr<Calls> calls_;
  bool stages_gathers_;
  std::string group_;
};

}  // namespace troupe
