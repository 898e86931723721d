// Which slots of states running sequences have, and which hold snapshots.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

namespace troupe {

// Slots of a StateCache by number. A running sequence holds one. Of the others some hold a snapshot: the
// state behind all that a page in the index of the PagePool is known for, so that a sequence that takes the
// page over goes on from there. A snapshot goes when its page leaves the index, or when its slot is needed;
// of these the one goes first that was found the longest ago.
class StateSlots {
 public:
  // count: 0 for a model without states, which has none of all this.
  explicit StateSlots(int64_t count);

  int64_t size() const { return size_; }
  // By sequences, and by snapshots that are not ready.
  int64_t held() const { return size_ - static_cast<int64_t>(free_.size() + ready_.size()); }
  int64_t snapshots() const { return static_cast<int64_t>(by_page_.size()); }

  // A slot, held until it is released or kept; -1: all are.
  int64_t take();
  void release(int64_t slot) { free_.push_back(slot); }

  // The slot, which the caller holds, is the snapshot behind this page; where there is one it is free, and
  // where memory runs out. Not found before it is ready.
  void keep(int64_t slot, int32_t page, bool ready);
  // The step has been computed: all snapshots are ready.
  void make_ready();
  // The page has left the index. Its snapshot may be one that is not ready.
  void forget(int32_t page);

  bool has(int32_t page) const { return by_page_.contains(page); }
  // The slot with the snapshot behind this page; -1: none.
  int64_t find(int32_t page) const;
  // It has been found.
  void touch(int32_t page);

 private:
  struct Snapshot {
    int64_t slot;
    bool ready;
    std::list<int32_t>::iterator place;  // in ready_
  };

  int64_t size_;
  std::vector<int64_t> free_;
  std::list<int32_t> ready_;   // pages of snapshots, the first to go in front
  std::vector<int32_t> made_;  // pages of those that the step makes
  std::unordered_map<int32_t, Snapshot> by_page_;
};

}  // namespace troupe
