// Which sequences take part in a step, with how many positions each.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "rollout/drafter.h"
#include "rollout/page_pool.h"
#include "rollout/prefix_cache.h"
#include "rollout/sequence.h"
#include "rollout/step_plan.h"

namespace troupe {

struct SchedulerLimits {
  int64_t max_sequences = 256;     // that run at the same time
  int64_t max_step_tokens = 8192;  // positions of a step
  int64_t max_positions = 0;       // of a sequence, prompt and response
  bool chunked_prefill = true;     // prompts may be cut over steps
  bool prefix_caching = true;
  int64_t state_slots = 0;  // no fewer than max_sequences; 0: of a model without states
  DraftOptions drafts{};
};

// Sequences from submission to their end. Decodes come first in a step, then what is left of running prompts,
// then new ones, by priority and arrival, then drafts. Pages are taken as sequences grow; where none is left
// the sequence of the lowest priority, of these the newest, gives its pages back and is computed again later.
// Each sequence that runs has a slot of states of its own, where there are any.
class Scheduler {
 public:
  Scheduler(const SchedulerLimits& limits, PagePool& pool);

  // kInvalidArgument, with numbers, for what can never be served. Where memory runs out (std::bad_alloc)
  // nothing has happened.
  // images: where those of the prompt lie.
  void submit(RolloutRequest request, std::vector<ImageSpan> images = {});
  // Nothing happens for unknown ids.
  void abort(uint64_t id);
  Sequence* find(uint64_t id);

  // Without runs when there is nothing to compute. Full pages of the plan are in the index already: the
  // caller copies the states and the tails that sequences of the plan begin with, computes the runs, or calls
  // drop(), also where this throws (std::bad_alloc).
  StepPlan plan();
  // The step has been computed. The state of a sequence is that behind what it has.
  void computed(StepPlan& plan);
  // A step has failed, perhaps while it was planned: no page is found in the index any more, since one may
  // not have been filled, and all sequences wait to be computed again. Takes no memory.
  void drop();
  // The sequence of the run has got the token that its draft had next, whose keys and values are therefore in
  // its pages.
  void accept(PlannedRun& run);
  // Gives back the slots of states behind tokens that a draft had wrong. For every plan, in the end, also
  // after drop().
  void settle(const StepPlan& plan);
  // How many tokens a guess may be worth while, of a sequence that decodes; 0: none.
  int64_t guess_room(const Sequence& sequence) const;
  // The token of a guess at this place has been sampled, or another one; those before it have.
  void guessed(const Guess& guess, int64_t at, bool right) { drafter_.guessed(guess, at, right); }
  // Ends a sequence, whose output has the reason. Needs no memory: without it others find less of what the
  // sequence leaves in the index and for drafts.
  void finish(Sequence& sequence);

  // The weights are others: pages of those before are not shared from now on.
  void weights_changed();
  // What is running gives its pages back, and waits to be computed again.
  void preempt_all();

  // Outputs of the sequences that have got tokens or have ended since the last call. Where memory runs out
  // (std::bad_alloc) the next call has them.
  std::vector<RolloutOutput> take_outputs();
  void report(Sequence& sequence);

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t preemptions() const { return preemptions_; }
  const StateSlots& slots() const { return prefixes_.slots(); }

 private:
  using Owner = std::unique_ptr<Sequence>;
  // Sequences go from one to the other without memory for it.
  using Owners = std::list<Owner>;

  void fill(StepPlan& plan);
  // Of these owners one goes to those that wait.
  void enqueue(Owners& from, Owners::iterator owner);
  bool grow(Sequence& sequence, int64_t positions);
  bool preempt_for(const Sequence& sequence);
  void release(Sequence& sequence);
  void start(Sequence& sequence, StepPlan& plan);
  bool add_run(Sequence& sequence, int64_t& budget, StepPlan& plan);
  void add_draft(int64_t& budget, PlannedRun& run, StepPlan& plan);
  void add_states(PlannedRun& run, StepPlan& plan);
  bool admit(int64_t& budget, StepPlan& plan);
  void add_copies(StepPlan& plan);
  bool idle(const Sequence& sequence) const;

  SchedulerLimits limits_;
  PagePool& pool_;
  PrefixCache prefixes_;
  Drafter drafter_;
  uint64_t arrivals_ = 0;
  int64_t preemptions_ = 0;
  Owners waiting_;  // by priority, then arrival
  Owners running_;  // by admission
  std::unordered_map<uint64_t, Sequence*> by_id_;
  Owners ended_;                    // until their outputs are taken
  std::vector<uint64_t> reported_;  // of the others, those that have outputs
};

}  // namespace troupe
