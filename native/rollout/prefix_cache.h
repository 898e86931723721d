// What sequences take over from those before them.
#pragma once

#include <cstdint>
#include <vector>

#include "rollout/page_pool.h"
#include "rollout/sequence.h"
#include "rollout/state_slots.h"
#include "rollout/step_plan.h"

namespace troupe {

// Full pages are known by their tokens as soon as a plan has them, the last page of a sequence that has ended
// as the tail of its chain.
//
// Where layers keep states (linear attention), pages are of use up to a snapshot alone. Snapshots are made
//   - behind a sequence's last row, when it ends: its own slot becomes one, and nothing is copied;
//   - behind the last full page before the end of a prompt (or of what a preempted sequence computes again):
//     for other samples of it, and for a next turn whose text departs from what was sampled;
//   - behind the last page that a prompt has found, where there was none: what two have in common, as a
//     system prompt, a third one is likely to have.
// So a prompt makes two of them at most, in slots that no running sequence has.
class PrefixCache {
 public:
  // enabled: false: nothing is found nor left. state_slots: 0 for a model without states.
  PrefixCache(PagePool& pool, bool enabled, int64_t state_slots);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Takes over the pages of the longest known prefix of the sequence, which has none; one position is left to
  // be computed.
  void match(Sequence& sequence);
  // Full pages among the first `positions`, which the step has planned, go into the index.
  void put(Sequence& sequence, int64_t positions);
  // Slots for the snapshots that the runs of the plan pass. No page may be taken behind it.
  void plan_snapshots(StepPlan& plan);
  // The step of the plan has been computed.
  void computed(const StepPlan& plan);
  // The sequence ends, all of whose full pages have been put: its last page and its state stay for those that
  // go on from it.
  void leave(Sequence& sequence);

  // A slot for a sequence that starts, with the state that it goes on from.
  void take_slot(Sequence& sequence, StepPlan& plan);
  // The slot of a sequence, and the page that its own one begins as a copy of.
  void release(Sequence& sequence);

  // A slot for the time of a step, behind plan_snapshots(); -1: all are held.
  int64_t take_spare() { return slots_.take(); }
  void release_spare(int64_t slot) { slots_.release(slot); }

  // What was made with the weights before is not found from now on. What runs has some of it, and is to share
  // nothing (Sequence::shares).
  void weights_changed();
  const StateSlots& slots() const { return slots_; }

 private:
  static uint64_t root(const Sequence& sequence);
  // What the next page that is not in its chain goes behind: the chain, and the images that begin in that
  // page.
  static uint64_t parent(const Sequence& sequence);
  bool match_tail(Sequence& sequence);
  void match_states(Sequence& sequence, std::vector<uint64_t> chains);
  void release_tail(Sequence& sequence);
  bool has_states() const { return slots_.size() > 0; }

  PagePool& pool_;
  bool enabled_;
  StateSlots slots_;
};

}  // namespace troupe
