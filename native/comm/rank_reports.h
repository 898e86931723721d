// What the ranks of a group say of where they are, once something has failed.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace troupe {

struct RankReports {
  std::vector<std::optional<std::string>> of_rank;  // [size]; none: nothing in time, or the rank itself
  bool complete = false;  // false: the store has failed or fallen silent, and nobody else was asked
};

// Leaves `own` of rank `rank` in the store and takes what the `size - 1` others leave there within `time`.
// Ends early where stopped() says so, and, whatever `time`, 5 s after the last answer of the store: c10d
// waits for one without an end, and none comes from a host that hangs or behind a tunnel that is dead.
RankReports exchange_reports(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                             const std::string& own, std::chrono::milliseconds time,
                             const std::function<bool()>& stopped);

}  // namespace troupe
