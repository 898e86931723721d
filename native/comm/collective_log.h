#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace troupe {

// What a collective is for: the phase of the work ("forward", "backward", ...) and what it moves (a
// parameter group, or another noun).
struct CollectiveLabel {
  const char* phase = "";
  std::string subject;
};

// The last collectives of a communicator, for the error when one of them fails.
class CollectiveLog {
 public:
  struct Entry {
    int64_t sequence = 0;  // 1-based, the same on all ranks
    const char* name = "";
    CollectiveLabel label;
    int64_t bytes = 0;  // that this rank sends
  };

  // The sequence number of the collective that now begins.
  int64_t begin(const char* name, const CollectiveLabel& label, int64_t bytes);
  // Collectives end in the order in which they began.
  void finish(int64_t sequence) { finished_ = std::max(finished_, sequence); }

  int64_t begun() const { return begun_; }
  // The collective that begun() counts last; only after a first one.
  const Entry& latest() const { return ring_[static_cast<size_t>(begun_ % kKept)]; }
  int64_t finished() const { return finished_; }
  int64_t bytes_sent() const { return bytes_sent_; }
  // "all_gather #42 of layers.0 (forward)"; "none" for 0, "#42" when it is too long ago.
  std::string describe(int64_t sequence) const;
  // The kept collectives, oldest first, one per line.
  std::string recent() const;

 private:
  static constexpr int64_t kKept = 8;
  std::array<Entry, kKept> ring_;
  int64_t begun_ = 0;
  int64_t finished_ = 0;
  int64_t bytes_sent_ = 0;
};

}  // namespace troupe
