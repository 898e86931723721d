#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "comm/communicator.h"

namespace troupe::test {

enum class Fate { kDies, kStops };

// Thrown by the rank that dies, in its own thread.
struct Dead {};

// The communicator of a rank, and its splits, that take no part in the first collective or message that is
// `here`, by its description. Dying closes its connections once the rank has unwound, as the end of a process
// does; stopping keeps them open for `stopped`, longer than its peers wait.
class Doomed final : public Communicator {
 public:
  using Here = std::function<bool(const std::string& description)>;

  Doomed(std::unique_ptr<Communicator> inner, Here here, Fate fate, std::chrono::milliseconds stopped = {})
      : Communicator(inner->rank(), inner->size()),
        inner_(std::move(inner)),
        here_(std::move(here)),
        fate_(fate),
        stopped_(stopped) {}

  std::unique_ptr<Communicator> split(const std::string& name, const std::vector<int64_t>& ranks) override {
    return std::make_unique<Doomed>(inner_->split(name, ranks), here_, fate_, stopped_);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 protected:
  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    meet_fate();
    Pending pending = inner_->all_gather_async(output, input, {});
    return [pending]() mutable { pending.wait(); };
  }
  std::function<void()> begin_all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    meet_fate();
    Pending pending = inner_->all_to_all_async(output, input, {});
    return [pending]() mutable { pending.wait(); };
  }
  void move_broadcast(const at::Tensor& tensor, int64_t root) override {
    meet_fate();
    inner_->broadcast(tensor, root, {});
  }
  void move_send(const at::Tensor& header, const at::Tensor& tensor, int64_t dst) override {
    meet_fate();
    inner_->send(as_it_was(header, tensor), dst, {});
  }
  void move_recv(const at::Tensor& header, const at::Tensor& tensor, int64_t src) override {
    meet_fate();
    inner_->recv(as_it_was(header, tensor), src, {});
  }

 private:
  // The bytes of a message in the dtype that its header says, which the other end compares.
  static at::Tensor as_it_was(const at::Tensor& header, const at::Tensor& bytes) {
    return bytes.view(static_cast<at::ScalarType>(header.view(at::kLong)[0].item<int64_t>()));
  }
  void meet_fate() {
    if (!here_(log().describe(log().begun()))) return;
    if (fate_ == Fate::kStops) std::this_thread::sleep_for(stopped_);
    inner_.reset();
    throw Dead{};
  }

  std::unique_ptr<Communicator> inner_;
  Here here_;
  Fate fate_;
  std::chrono::milliseconds stopped_;
};

}  // namespace troupe::test
