#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "doomed.h"
#include "generation.h"
#include "toy_training.h"

// A rank that is lost in a collective of a phase: what its peers say, and when. Processes and signals are
// test/dist's.

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kRanks = 3;

// Of a collective. Death is noticed without it, so it may be long; and joining must fit, on a busy machine.
std::chrono::milliseconds timeout(Fate fate) {
  return std::chrono::seconds(fate == Fate::kDies ? 60 : 6);
}

// What each rank threw while it did a bit of everything.
std::vector<std::string> lose_rank_1(const std::string& phase, const std::string& where, Fate fate,
                                     const std::string& sharding, bool ahead = false, bool muon = false) {
  const auto rendezvous = Rendezvous::open();
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.sharding = parse_sharding_strategy(sharding);
  options.prefetch = ahead;
  options.overlap_reduction = ahead;
  if (muon) options.optim->muon = MuonOptions{};
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto direct = make_communicator(
            {"gloo", rank, kRanks, "127.0.0.1", rendezvous->port(), "secret", timeout(fate)});
        std::shared_ptr<Communicator> comm;
        if (rank == 1) {
          const auto here = [&where](const std::string& description) {
            return description.find(where) != std::string::npos;
          };
          comm = std::make_shared<Doomed>(std::move(direct), here, fate, timeout(fate) * 2);
        } else {
          comm = std::move(direct);
        }
        comm->barrier({"joined", "group"});  // else a peer that is still connecting could find it gone
        const auto engine = create_engine(options, comm);
        const Share share = share_of(rank, {0, 1, 2, 0, 1, 2, 0, 1});
        if (phase == "generate") {
          test::generate(*engine, {at::tensor({1, 2}, at::kInt), at::tensor({0, 2}, at::kInt), 1, {7}},
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

// Peers tell the collective that they were in, and one of them at least who is missing.
void check_lost(const std::vector<std::string>& errors, const std::string& collective,
                const std::string& where) {
  CHECK(errors[1] == "dead");
  bool named = false;
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    CHECK(errors[rank].find("[comm] rank " + std::to_string(rank) + ": " + collective) == 0);
    CHECK(errors[rank].find(where) != std::string::npos);
    named = named || errors[rank].find("No sign of rank 1: dead, stopped, or busy") != std::string::npos;
  }
  CHECK(named);
  if (!named) std::printf("  %s\n  %s\n", errors[0].c_str(), errors[2].c_str());
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
  for (const Case& one : all) check_lost(one.errors, "", "(" + one.phase + ")");
}

// Rank 1 is lost where it would begin to gather a block while the one before it is at work: its peers have
// begun, compute, and find out when they need the block.
TEST(a_rank_that_is_lost_while_a_gather_is_under_way_fails_its_peers_by_name) {
  for (const Fate fate : {Fate::kDies, Fate::kStops}) {
    for (const std::string phase : {"forward", "backward"}) {
      const std::string block = phase == "forward" ? "layers.1" : "layers.0";
      const std::string where = "of " + block + " (" + phase + ")";
      check_lost(lose_rank_1(phase, where, fate, "full_shard", /*ahead=*/true), "all_gather #", where);
    }
  }
}

// Some matrices have moved already.
TEST(a_rank_that_is_lost_while_directions_of_muon_are_gathered_fails_its_peers_by_name) {
  for (const Fate fate : {Fate::kDies, Fate::kStops}) {
    const std::string where = "of layers.1 (optimizer)";
    const auto errors = lose_rank_1("optimizer", where, fate, "full_shard", /*ahead=*/false, /*muon=*/true);
    check_lost(errors, "all_gather #", where);
  }
}

// Rank 1 is lost where it would begin to sum a block's gradient: its peers have begun, compute the gradient
// of the block before it, and find out when that is to be summed.
TEST(a_rank_that_is_lost_while_a_gradient_is_on_its_way_fails_its_peers_by_name) {
  for (const Fate fate : {Fate::kDies, Fate::kStops}) {
    const std::string where = "reduce_scatter #";
    check_lost(lose_rank_1("backward", where, fate, "shard_grad_op", /*ahead=*/true), where, where);
  }
}

TEST_MAIN()
