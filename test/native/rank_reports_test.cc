#include "comm/rank_reports.h"

#include <atomic>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "check.h"

// What ranks learn of one another through a store, and when they stop waiting for it.

using namespace troupe;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

// One that counts the questions, and fails where it is told to.
class Store final : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>& keys) override {
    ++asked;
    TORCH_CHECK(!fails, "the store is gone");
    return HashStore::check(keys);
  }

  std::atomic<int> asked{0};
  std::atomic<bool> fails{false};
};

const auto never = [] { return false; };

}  // namespace

TEST(ranks_read_what_each_of_them_has_left) {
  const auto store = c10::make_intrusive<Store>();
  std::vector<RankReports> found(3);
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const std::string own = "rank " + std::to_string(rank);
      found[static_cast<size_t>(rank)] = exchange_reports(store, rank, 3, own, milliseconds(30'000), never);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (size_t rank = 0; rank < 3; ++rank) {
    CHECK(found[rank].complete);
    for (size_t other = 0; other < 3; ++other) {
      const auto& report = found[rank].of_rank[other];
      CHECK(other == rank ? !report : report == "rank " + std::to_string(other));
    }
  }
}

// Longer than a store may be silent, which answers all the time.
TEST(a_rank_that_leaves_nothing_is_waited_for_as_long_as_was_asked) {
  const auto store = c10::make_intrusive<Store>();
  const auto begin = steady_clock::now();
  const RankReports found = exchange_reports(store, 1, 2, "own", milliseconds(5500), never);
  CHECK(steady_clock::now() - begin >= milliseconds(5500));
  CHECK(found.complete && !found.of_rank[0] && !found.of_rank[1]);
}

TEST(nobody_asks_any_more_once_the_wait_is_over) {
  const auto store = c10::make_intrusive<Store>();
  const auto begin = steady_clock::now();
  const auto later = [&] { return steady_clock::now() > begin + milliseconds(300); };
  const RankReports found = exchange_reports(store, 0, 3, "own", milliseconds(60'000), later);
  CHECK(steady_clock::now() - begin < milliseconds(30'000));
  CHECK(!found.complete && !found.of_rank[1] && !found.of_rank[2]);
  // At most the question that is on its way.
  std::this_thread::sleep_for(milliseconds(1000));
  const int asked = store->asked;
  std::this_thread::sleep_for(milliseconds(300));
  CHECK(store->asked == asked);
}

TEST(a_store_that_fails_says_nothing_of_anybody) {
  const auto store = c10::make_intrusive<Store>();
  store->fails = true;
  const RankReports found = exchange_reports(store, 0, 2, "own", milliseconds(30'000), never);
  CHECK(!found.complete && !found.of_rank[1]);
}

TEST_MAIN()
