// Ranks in which something happens right behind a collective.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace troupe::test {

// Runs `behind` once each of its all-gathers has come, with what describes it.
class Watched final : public Communicator {
 public:
  using Behind = std::function<void(const std::string& description)>;

  Watched(std::unique_ptr<Communicator> inner, Behind behind)
      : Communicator(inner->rank(), inner->size()), inner_(std::move(inner)), behind_(std::move(behind)) {}

  std::unique_ptr<Communicator> split(const std::string& name, const std::vector<int64_t>& ranks) override {
    return std::make_unique<Watched>(inner_->split(name, ranks), behind_);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 protected:
  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    Pending pending = inner_->all_gather_async(output, input, {});
    return [this, pending, description = log().describe(log().begun())]() mutable {
      pending.wait();
      behind_(description);
    };
  }
  std::function<void()> begin_all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    Pending pending = inner_->all_to_all_async(output, input, {});
    return [pending]() mutable { pending.wait(); };
  }
  void move_broadcast(const at::Tensor& tensor, int64_t root) override {
    inner_->broadcast(tensor, root, {});
  }
  void move_send(const at::Tensor&, const at::Tensor&, int64_t) override {}  // there are no messages
  void move_recv(const at::Tensor&, const at::Tensor&, int64_t) override {}

 private:
  std::unique_ptr<Communicator> inner_;
  Behind behind_;
};

// All ranks of `comm`, watched.
inline std::shared_ptr<Communicator> watched(Communicator& comm, Watched::Behind behind) {
  std::vector<int64_t> all(static_cast<size_t>(comm.size()));
  std::iota(all.begin(), all.end(), 0);
  return std::make_shared<Watched>(comm.split("watched", all), std::move(behind));
}

}  // namespace troupe::test
