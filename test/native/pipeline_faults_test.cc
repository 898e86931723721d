// A stage of a pipeline is lost at any of its messages: in warm-up, steady state or cool-down of an update,
// in its optimizer, in log-probs or generation. Its peers say who, and nobody waits. Processes and signals
// are test/dist's.

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <set>
#include <thread>

#include "check.h"
#include "comm/rendezvous.h"
#include "doomed.h"
#include "generation.h"
#include "toy_training.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kStages = 3;

struct Loss {
  int64_t victim, at;  // at its at-th message or collective, from 1
  std::vector<std::string> errors = std::vector<std::string>(kStages);
  std::string last;  // what the victim would have done
};

// What a step asks of a stage. Every rank of a pipeline has the same data.
void work(Engine& engine) {
  const Share share = share_of(0, std::vector<int64_t>(kSequences, 0));
  test::generate(engine, {at::tensor({1, 2}, at::kInt), at::tensor({0, 2}, at::kInt), 1, {7}},
                 {2, 1, 0, 1, {}});
  engine.compute_log_prob(share.tokens, 1, false, false);
  engine.update_policy({share.tokens, share.mask, share.a, share.b, {}, {}, {}}, share.mini, {}, 1);
}

// Each rank in a thread. Returns how many operations of the victim there were, once its engine was there.
int64_t lose(Loss& loss) {
  const auto rendezvous = Rendezvous::open();
  std::vector<std::thread> threads;
  EngineOptions options = options_of("qwen3", HeadKind::kLm);
  options.model.num_layers = kStages;
  options.model.sliding_windows.assign(kStages, 0);
  options.pipeline.stages = kStages;
  options.max_tokens = 24;  // more micro-batches than stages
  bool working = false;     // of the victim
  int64_t begun = 0;
  const auto here = [&](const std::string& description) {
    if (!working || ++begun != loss.at) return false;
    loss.last = description;
    return true;
  };
  for (int64_t rank = 0; rank < kStages; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& error = loss.errors[static_cast<size_t>(rank)];
      try {
        auto direct = make_communicator(
            {"gloo", rank, kStages, "127.0.0.1", rendezvous->port(), "secret", std::chrono::seconds(60)});
        std::shared_ptr<Communicator> comm;
        if (rank == loss.victim) {
          comm = std::make_shared<Doomed>(std::move(direct), here, Fate::kDies);
        } else {
          comm = std::move(direct);
        }
        const auto engine = create_engine(options, comm);
        comm.reset();  // the engine's alone: it goes with it
        if (rank == loss.victim) working = true;
        work(*engine);
      } catch (const Dead&) {
        error = "dead";
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return begun;
}

bool has(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

// "No sign of rank 1, rank 2: ...": the ranks.
std::string unseen(const std::string& error) {
  const size_t begin = error.find("No sign of "), end = error.find(':', begin);
  return begin == std::string::npos ? "" : error.substr(begin, end - begin);
}

constexpr size_t kAtOnce = 8;
// A death is noticed at once, also by those who do not talk to the dead.
constexpr const char* kTimedOut = "did not complete within";

}  // namespace

// All of the operations of each stage with TROUPE_TEST_EXHAUSTIVE=1, else every third, which one differs from
// stage to stage.
TEST(a_stage_that_is_lost_at_any_message_fails_its_peers_by_name) {
  const int64_t step = std::getenv("TROUPE_TEST_EXHAUSTIVE") == nullptr ? 3 : 1;
  std::vector<Loss> all;
  for (int64_t victim = 0; victim < kStages; ++victim) {
    Loss none{victim, 0};
    const int64_t operations = lose(none);
    for (const std::string& error : none.errors) report(error.empty(), __FILE__, __LINE__, error);
    CHECK(operations > 20);
    for (int64_t at = 1 + victim; at <= operations; at += step) all.push_back({victim, at});
  }
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kAtOnce; ++i) {
    threads.emplace_back([&] {
      for (size_t one = next++; one < all.size(); one = next++) lose(all[one]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> phases;
  for (const Loss& one : all) {
    const int before = failures();
    bool named = false;
    for (int64_t rank = 0; rank < kStages; ++rank) {
      const std::string& error = one.errors[static_cast<size_t>(rank)];
      if (rank == one.victim) {
        CHECK(error == "dead");
        continue;
      }
      CHECK(error.find("[comm] rank " + std::to_string(rank) + ": ") == 0);
      CHECK(error.find(kTimedOut) == std::string::npos);
      // Also among others that have gone because of it.
      named = named || has(unseen(error), "rank " + std::to_string(one.victim));
    }
    CHECK(named);
    const size_t open = one.last.rfind('(');
    phases.insert(open == std::string::npos ? one.last : one.last.substr(open));
    report(failures() == before, __FILE__, __LINE__,
           "rank " + std::to_string(one.victim) + " at " + one.last + ": " + one.errors[0] + " | " +
               one.errors[1] + " | " + one.errors[2]);
  }
  for (const char* phase : {"(forward)", "(backward)", "(optimizer)"}) CHECK(phases.contains(phase));
  std::printf("  %zu losses, in", all.size());
  for (const std::string& phase : phases) std::printf(" %s", phase.c_str());
  std::printf("\n");
}

TEST_MAIN()
