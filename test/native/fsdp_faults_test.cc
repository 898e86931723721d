#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "toy_training.h"

// A rank that is lost in a collective of a phase: what its peers say, and when. Processes and signals are
// test/dist's.

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kRanks = 3;

enum class Fate { kDies, kStops };

// Of a collective. Death is noticed without it, so it may be long; and joining must fit, on a busy machine.
std::chrono::milliseconds timeout(Fate fate) {
  return std::chrono::seconds(fate == Fate::kDies ? 60 : 6);
}

// Thrown by the rank that dies, in its own thread.
struct Dead {};

// Rank 1's communicator: does not take part in the first collective whose description ends with `where`.
// Dying closes its connections, as the end of a process does; stopping keeps them open for longer than its
// peers wait.
class Doomed final : public Communicator {
 public:
  Doomed(std::unique_ptr<Communicator> inner, std::string where, Fate fate)
      : Communicator(inner->rank(), inner->size()),
        inner_(std::move(inner)),
        where_(std::move(where)),
        fate_(fate) {}

  std::unique_ptr<Communicator> split(const std::string& name, const std::vector<int64_t>& ranks) override {
    return inner_->split(name, ranks);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 protected:
  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    meet_fate();
    Pending pending = inner_->all_gather_async(output, input, {});
    return [pending]() mutable { pending.wait(); };
  }
  void move_all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    meet_fate();
    inner_->all_to_all(output, input, {});
  }
  void move_broadcast(const at::Tensor& tensor, int64_t root) override {
    meet_fate();
    inner_->broadcast(tensor, root, {});
  }
  void move_send(const at::Tensor&, const at::Tensor& tensor, int64_t dst) override {
    meet_fate();
    inner_->send(tensor, dst, {});
  }
  void move_recv(const at::Tensor&, const at::Tensor& tensor, int64_t src) override {
    meet_fate();
    inner_->recv(tensor, src, {});
  }

 private:
  void meet_fate() {
    if (log().describe(log().begun()).find(where_) == std::string::npos) return;
    if (fate_ == Fate::kStops) std::this_thread::sleep_for(timeout(fate_) * 2);
    inner_.reset();
    throw Dead{};
  }

  std::unique_ptr<Communicator> inner_;
  std::string where_;
  Fate fate_;
};

// What each rank threw while it did a bit of everything.
std::vector<std::string> lose_rank_1(const std::string& phase, const std::string& where, Fate fate,
                                     const std::string& sharding, bool prefetch = false) {
  const auto rendezvous = Rendezvous::open();
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.sharding = parse_sharding_strategy(sharding);
  options.prefetch = prefetch;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto direct = make_communicator(
            {"gloo", rank, kRanks, "127.0.0.1", rendezvous->port(), "secret", timeout(fate)});
        std::shared_ptr<Communicator> comm;
        if (rank == 1) {
          comm = std::make_shared<Doomed>(std::move(direct), where, fate);
        } else {
          comm = std::move(direct);
        }
        const auto engine = create_engine(options, comm);
        const Share share = share_of(rank, {0, 1, 2, 0, 1, 2, 0, 1});
        if (phase == "generate") {
          engine->generate({at::tensor({1, 2}, at::kInt), at::tensor({0, 2}, at::kInt), 1, {7}},
                           {4, 1, 0, 1, {}});
        }
        if (phase == "gather") engine->get_tensor(TensorKind::kExpAvg, "embed.weight");
        engine->update_policy({share.tokens, share.mask, share.a, share.b, {}, {}, {}}, share.mini, {}, 1);
      } catch (const Dead&) {
        errors[static_cast<size_t>(rank)] = "dead";
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace

TEST(a_rank_that_is_lost_in_any_phase_fails_its_peers_by_name) {
  struct Case {
    std::string phase, sharding;
    Fate fate;
    std::vector<std::string> errors = {};
  };
  std::vector<Case> all;
  for (const Fate fate : {Fate::kDies, Fate::kStops}) {
    for (const std::string phase : {"start", "forward", "backward", "optimizer", "generate", "gather"})
      all.push_back({phase, "full_shard", fate});
    all.push_back({"forward", "shard_grad_op", fate});
    all.push_back({"backward", "no_shard", fate});
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (Case& one : all) {
    threads.emplace_back(
        [&one] { one.errors = lose_rank_1(one.phase, "(" + one.phase + ")", one.fate, one.sharding); });
  }
  for (std::thread& thread : threads) thread.join();
  // The peers wait for their time-out and then for news of each other, and no longer.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(40));
  for (const Case& one : all) {
    CHECK(one.errors[1] == "dead");
    bool named = false;
    for (const size_t rank : {size_t{0}, size_t{2}}) {
      const std::string& error = one.errors[rank];
      CHECK(error.find("[comm] rank " + std::to_string(rank) + ": ") == 0);
      CHECK(error.find("(" + one.phase + ")") != std::string::npos);
      named = named || error.find("No sign of rank 1: dead, stopped, or busy") != std::string::npos;
    }
    CHECK(named);
    if (!named)
      std::printf("  %s: %s\n  %s\n", one.phase.c_str(), one.errors[0].c_str(), one.errors[2].c_str());
  }
}

// Rank 1 is lost where it would begin to gather a block while the one before it is at work: its peers have
// begun, compute, and find out when they need the block.
TEST(a_rank_that_is_lost_while_a_gather_is_under_way_fails_its_peers_by_name) {
  for (const Fate fate : {Fate::kDies, Fate::kStops}) {
    for (const std::string phase : {"forward", "backward"}) {
      const std::string block = phase == "forward" ? "layers.1" : "layers.0";
      const std::string where = "of " + block + " (" + phase + ")";
      const auto errors = lose_rank_1(phase, where, fate, "full_shard", /*prefetch=*/true);
      CHECK(errors[1] == "dead");
      bool named = false;
      for (const size_t rank : {size_t{0}, size_t{2}}) {
        CHECK(errors[rank].find("[comm] rank " + std::to_string(rank) + ": all_gather #") == 0);
        CHECK(errors[rank].find(where) != std::string::npos);
        named = named || errors[rank].find("No sign of rank 1: dead, stopped, or busy") != std::string::npos;
      }
      CHECK(named);
      if (!named) std::printf("  %s\n  %s\n", errors[0].c_str(), errors[2].c_str());
    }
  }
}

TEST_MAIN()
