// Slots from hand to hand.
#include "rollout/state_slots.h"

namespace troupe {

StateSlots::StateSlots(int64_t count) : size_(count) {
  for (int64_t slot = count; slot-- > 0;) free_.push_back(slot);
}

int64_t StateSlots::take() {
  if (free_.empty()) {
    if (ready_.empty()) return -1;
    forget(ready_.front());
  }
  const int64_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void StateSlots::keep(int64_t slot, int32_t page, bool ready) {
  if (has(page)) {
    if (find(page) >= 0) touch(page);
    return release(slot);
  }
  Snapshot snapshot{slot, ready, ready_.end()};
  try {
    if (!ready) made_.push_back(page);
    if (ready) snapshot.place = ready_.insert(ready_.end(), page);
    by_page_.emplace(page, snapshot);
  } catch (...) {
    if (snapshot.place != ready_.end()) ready_.erase(snapshot.place);
    release(slot);
    throw;
  }
}

void StateSlots::make_ready() {
  for (const int32_t page : made_) {
    const auto found = by_page_.find(page);
    if (found == by_page_.end() || found->second.ready) continue;
    found->second.place = ready_.insert(ready_.end(), page);
    found->second.ready = true;
  }
  made_.clear();
}

void StateSlots::forget(int32_t page) {
  const auto found = by_page_.find(page);
  if (found == by_page_.end()) return;
  if (found->second.ready) ready_.erase(found->second.place);
  release(found->second.slot);
  by_page_.erase(found);
}

int64_t StateSlots::find(int32_t page) const {
  const auto found = by_page_.find(page);
  return found == by_page_.end() || !found->second.ready ? -1 : found->second.slot;
}

void StateSlots::touch(int32_t page) {
  const Snapshot& snapshot = by_page_.at(page);
  ready_.splice(ready_.end(), ready_, snapshot.place);
}

}  // namespace troupe
