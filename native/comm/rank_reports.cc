// Reports by rank through the store, on a thread that may be left behind.
#include "comm/rank_reports.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

namespace troupe {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPoll{20};
constexpr milliseconds kSilence{5000};  // of the store

std::string key(int64_t rank) {
  return "troupe/failed/" + std::to_string(rank);
}

// Between who asks the store and who waits for it. The first may outlive the second.
class Inquiry {
 public:
  explicit Inquiry(int64_t size) { reports_.of_rank.resize(static_cast<size_t>(size)); }

  // An answer of the store: what a rank has left there, or that it has not. False: nobody waits any more.
  bool heard(int64_t rank, std::optional<std::string> report) {
    const std::lock_guard lock(mutex_);
    answered_ = Clock::now();
    if (report) reports_.of_rank[static_cast<size_t>(rank)] = std::move(report);
    return wanted_;
  }
  void end(bool complete) {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    reports_.complete = complete;
    changed_.notify_all();
  }
  // Whether end() has been called; false when there is no point in waiting for it.
  bool wait(const std::function<bool()>& stopped) {
    std::unique_lock lock(mutex_);
    while (!ended_ && !stopped() && Clock::now() < answered_ + kSilence) changed_.wait_for(lock, kPoll);
    wanted_ = false;
    return ended_;
  }
  RankReports reports() {
    const std::lock_guard lock(mutex_);
    return reports_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  RankReports reports_;
  Clock::time_point answered_ = Clock::now();
  bool ended_ = false, wanted_ = true;
};

void ask(c10d::Store& store, int64_t rank, int64_t size, const std::string& own, milliseconds time,
         Inquiry& inquiry) {
  store.set(key(rank), std::vector<uint8_t>(own.begin(), own.end()));
  const auto deadline = Clock::now() + time;
  for (int64_t r = 0; r < size; ++r) {
    if (r == rank) continue;
    bool there = store.check({key(r)});
    while (!there && Clock::now() < deadline && inquiry.heard(r, std::nullopt)) {
      std::this_thread::sleep_for(kPoll);
      there = store.check({key(r)});
    }
    std::optional<std::string> report;
    if (there) {
      const std::vector<uint8_t> value = store.get(key(r));
      report.emplace(value.begin(), value.end());
    }
    if (!inquiry.heard(r, std::move(report))) return;
  }
}

}  // namespace

RankReports exchange_reports(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                             const std::string& own, milliseconds time,
                             const std::function<bool()>& stopped) {
  const auto inquiry = std::make_shared<Inquiry>(size);
  try {
    std::thread asking([=] {
      try {
        ask(*store, rank, size, own, time, *inquiry);
        inquiry->end(/*complete=*/true);
      } catch (const std::exception&) {
        inquiry->end(/*complete=*/false);
      }
    });
    if (inquiry->wait(stopped)) {
      asking.join();
    } else {
      asking.detach();
    }
  } catch (const std::exception&) {  // no thread can be had
  }
  return inquiry->reports();
}

}  // namespace troupe
