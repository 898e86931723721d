// What a rank has called so far: for errors that say where the ranks stand.
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

// The last collectives and messages of a communicator, for the error when one of them fails.
class CollectiveLog {
 public:
  struct Entry {
    int64_t sequence = 0;  // 1-based: what this rank has begun, messages included
    int64_t number = 0;    // 1-based: the same on all ranks, or at both ends of a message
    const char* name = "";
    CollectiveLabel label;
    int64_t bytes = 0;     // that this rank sends
    const char* way = "";  // of a message: "to" or "from" `peer`
    int64_t peer = -1;     // as the outside knows it
  };

  // The sequence number of the collective that now begins.
  int64_t begin(const char* name, const CollectiveLabel& label, int64_t bytes);
  // The same for a message; `entry` without its sequence number.
  int64_t record(Entry entry);
  // They end in the order in which they began.
  void finish(int64_t sequence) { finished_ = std::max(finished_, sequence); }

  int64_t begun() const { return begun_; }
  // Collectives begun so far, messages left out: equal on all ranks that are at the same place of the
  // program.
  int64_t collectives() const { return collectives_; }
  // The collective or message that was begun last; there must have been one.
  const Entry& latest() const { return ring_[static_cast<size_t>(begun_ % kKept)]; }
  int64_t finished() const { return finished_; }
  int64_t bytes_sent() const { return bytes_sent_; }
  // Null when it is too long ago.
  const Entry* find(int64_t sequence) const;
  // "all_gather #42 of layers.0 (forward)", "send #3 to rank 1 of layers.0 (forward)"; "none" for 0.
  std::string describe(int64_t sequence) const;

 private:
  static constexpr int64_t kKept = 8;
  std::array<Entry, kKept> ring_;
  int64_t begun_ = 0;
  int64_t collectives_ = 0;
  int64_t finished_ = 0;
  int64_t bytes_sent_ = 0;
};

}  // namespace troupe
