// Admission, growth, preemption, and what goes into the index of pages.
#include "rollout/scheduler.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "base/error.h"
#include "rollout/kv_cache.h"

namespace troupe {
namespace {

// Higher priority first, then the earlier one.
bool before(const Sequence& a, const Sequence& b) {
  if (a.request.priority != b.request.priority) return a.request.priority > b.request.priority;
  return a.arrival < b.arrival;
}

bool same_images(const Sequence& a, const Sequence& b) {
  const std::vector<Image>&x = a.request.images, &y = b.request.images;
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_image);
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, PagePool& pool)
    : limits_(limits),
      pool_(pool),
      prefixes_(pool, limits.prefix_caching, limits.state_slots),
      drafter_(limits.drafts) {}

void Scheduler::submit(RolloutRequest request, std::vector<ImageSpan> images) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  // The last token of a response is sampled but never fed to the model: it needs no place in the cache.
  const int64_t positions = prompt + request.sampling.max_new_tokens - 1;
  require(positions < limits_.max_positions, ErrorCode::kInvalidArgument, "[rollout] a prompt of ", prompt,
          " tokens and ", request.sampling.max_new_tokens, " new ones are ", positions + 1,
          ", more than the engine's ", limits_.max_positions,
          " positions: shorten the prompt or the response");
  require(KvCache::pages_for(positions) <= pool_.size(), ErrorCode::kInvalidArgument,
          "[rollout] a prompt of ", prompt, " tokens and ", request.sampling.max_new_tokens,
          " new ones need ", KvCache::pages_for(positions), " pages of ", kPagePositions,
          " positions, and the cache has ", pool_.size(),
          ": shorten the prompt or the response, or give the cache more memory (gpu_memory_utilization)");
  require(!by_id_.contains(request.id), ErrorCode::kInternal, "[rollout] request ", request.id,
          " is there already");
  // All that takes memory first: where it runs out nobody has heard of the request.
  Owners owners;
  owners.push_back(std::make_unique<Sequence>());
  Sequence* const sequence = owners.front().get();
  sequence->tokens = request.prompt;
  sequence->arrival = arrivals_++;
  sequence->output.id = request.id;
  if (request.sampling.penalises()) {
    for (const int32_t token : request.prompt) sequence->seen.try_emplace(token, 0);
  }
  sequence->images = std::move(images);
  sequence->request = std::move(request);
  const uint64_t id = sequence->request.id;
  const size_t reported = reported_.size();
  try {
    if (sequence->request.sampling.constrained) report(*sequence);
    by_id_.emplace(id, sequence);
    drafter_.begin(*sequence);
  } catch (...) {
    by_id_.erase(id);
    reported_.resize(reported);
    throw;
  }
  enqueue(owners, owners.begin());
}

void Scheduler::enqueue(Owners& from, Owners::iterator owner) {
  // Searched from the end, where most new requests belong.
  auto place = waiting_.end();
  while (place != waiting_.begin() && before(**owner, **std::prev(place))) --place;
  waiting_.splice(place, from, owner);
}

Sequence* Scheduler::find(uint64_t id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

void Scheduler::abort(uint64_t id) {
  Sequence* sequence = find(id);
  if (sequence == nullptr) return;
  sequence->output.finish = Finish::kAbort;
  finish(*sequence);
}

void Scheduler::finish(Sequence& sequence) {
  drafter_.end(sequence);
  try {
    prefixes_.put(sequence, sequence.computed);  // pages that a draft has filled
    prefixes_.leave(sequence);
  } catch (const std::bad_alloc&) {
    // Those behind it find less in the index, and compute it themselves.
  }
  release(sequence);
  by_id_.erase(sequence.request.id);
  const auto is = [&](const Owner& owner) { return owner.get() == &sequence; };
  for (Owners* const owners : {&running_, &waiting_}) {
    const auto owner = std::find_if(owners->begin(), owners->end(), is);
    if (owner == owners->end()) continue;
    ended_.splice(ended_.end(), *owners, owner);
    return;
  }
}

void Scheduler::release(Sequence& sequence) {
  prefixes_.release(sequence);
  // Last pages first: pages are reused in the order of their release, and a later page of a chain is of no
  // use without those before it.
  for (auto page = sequence.pages.rbegin(); page != sequence.pages.rend(); ++page) pool_.release(*page);
  sequence.pages.clear();
  sequence.features.reset();
  sequence.computed = sequence.chained = 0;
  sequence.shares = true;
  sequence.running = false;
}

void Scheduler::start(Sequence& sequence, StepPlan& plan) {
  sequence.running = true;
  prefixes_.take_slot(sequence, plan);
}

// Preempts the running sequence that comes last (lowest priority, then newest). Never one that comes before
// `sequence` or is in the plan of this step; false: there is none.
bool Scheduler::preempt_for(const Sequence& sequence) {
  auto victim = running_.end();
  for (auto i = running_.begin(); i != running_.end(); ++i) {
    const Sequence& other = **i;
    if (&other == &sequence || other.planned || before(other, sequence) || other.pages.empty()) continue;
    if (victim == running_.end() || before(**victim, other)) victim = i;
  }
  if (victim == running_.end()) return false;
  ++preemptions_;
  release(**victim);
  enqueue(running_, victim);
  return true;
}

bool Scheduler::grow(Sequence& sequence, int64_t positions) {
  while (static_cast<int64_t>(sequence.pages.size()) < KvCache::pages_for(positions)) {
    if (!pool_.take(sequence.pages) && !preempt_for(sequence)) return false;
  }
  return true;
}

bool Scheduler::idle(const Sequence& sequence) const {
  return sequence.remaining() == 1 && !sequence.may_sample();
}

// False: there is no room for it in this step.
bool Scheduler::add_run(Sequence& sequence, int64_t& budget, StepPlan& plan) {
  int64_t count = sequence.remaining();
  // The last position's row is computed only when its token may be sampled (a mask may be missing).
  if (!sequence.may_sample()) --count;
  if (limits_.chunked_prefill) count = std::min(count, budget);
  if (count <= 0 || !grow(sequence, sequence.computed + count)) return false;
  budget -= count;
  if (count > 1) plan.apart = false;
  plan.rows += count;
  sequence.planned = true;
  plan.runs.push_back({.sequence = &sequence, .count = count});
  prefixes_.put(sequence, sequence.computed + count);
  return true;
}

int64_t Scheduler::guess_room(const Sequence& sequence) const {
  const RequestSampling& sampling = sequence.request.sampling;
  // What changes logits follows from the tokens before, which a draft only guesses.
  if (sampling.changes_logits() || !drafter_.drafts(running())) return 0;
  // The last token of a response is never fed to the model.
  return std::min(sampling.max_new_tokens - sequence.response_length() - 1, drafter_.depth(running()));
}

// Rows behind that of a sequence that decodes, for what may follow its next token. Room that others could
// have is not taken for them: they may turn out to be for nothing.
void Scheduler::add_draft(int64_t& budget, PlannedRun& run, StepPlan& plan) {
  Sequence& sequence = *run.sequence;
  // Copies sample from the last row.
  if (sequence.remaining() != 1 || !run.copies.empty()) return;
  run.guess = drafter_.guess(sequence, guess_room(sequence));
  int64_t rows = std::min(budget, drafter_.worth(run.guess, running()));
  while (static_cast<int64_t>(sequence.pages.size()) < KvCache::pages_for(sequence.length() + rows)) {
    if (pool_.available() <= running() || !pool_.take(sequence.pages)) --rows;
  }
  if (rows > 0) plan.apart = false;
  run.drafted = rows;
  run.count += rows;
  plan.rows += rows;
  budget -= rows;
}

// Admits the first of those that wait; false: no room for it.
bool Scheduler::admit(int64_t& budget, StepPlan& plan) {
  Sequence& sequence = *waiting_.front();
  prefixes_.match(sequence);
  // Admitted only if pages for all of its tokens so far are free. Otherwise it would soon be preempted for
  // the running sequences, and its work lost. Where nothing runs they are: submit() sees to that.
  const int64_t wanted = KvCache::pages_for(sequence.length()) - static_cast<int64_t>(sequence.pages.size());
  const bool room = wanted <= pool_.available();
  // A prompt that may not be cut and is longer than a step gets a step of its own.
  const bool fits = limits_.chunked_prefill || sequence.remaining() <= budget || plan.rows == 0;
  if (!room || !fits) {
    release(sequence);
    return false;
  }
  if (!sequence.looked_up) {
    sequence.output.cached_tokens = sequence.computed;
    sequence.looked_up = true;
  }
  plan.apart = false;  // it may have taken over a page of this step
  start(sequence, plan);
  running_.splice(running_.end(), waiting_, waiting_.begin());
  if (idle(sequence)) return true;
  return add_run(sequence, budget, plan);
}

// Waiting sequences with the same tokens as the run just planned (other samples of its prompt) are admitted
// without rows of their own: they share its pages and sample from its last row.
void Scheduler::add_copies(StepPlan& plan) {
  PlannedRun& run = plan.runs.back();
  const Sequence& first = *run.sequence;
  if (run.count != first.remaining()) return;
  while (!waiting_.empty() && running() < limits_.max_sequences) {
    Sequence& next = *waiting_.front();
    const bool same = next.request.salt == first.request.salt && next.tokens == first.tokens &&
                      same_images(next, first) && next.may_sample() && !next.wants_prompt_log_probs();
    if (!same) return;
    const size_t full = static_cast<size_t>(first.length() / kPagePositions);
    const bool own = first.pages.size() > full;  // a last page that is not full
    next.pages.reserve(full + 1);
    if (own && !pool_.take(next.pages)) return;
    for (size_t i = 0; i < full; ++i) pool_.hold(first.pages[i]);
    next.pages.insert(next.pages.begin(), first.pages.begin(),
                      first.pages.begin() + static_cast<std::ptrdiff_t>(full));
    next.chained = first.chained;
    next.chain = first.chain;
    if (!next.looked_up) next.output.cached_tokens = next.prompt_length();
    next.looked_up = true;
    run.copies.push_back(&next);
    start(next, plan);
    running_.splice(running_.end(), waiting_, waiting_.begin());
  }
}

StepPlan Scheduler::plan() {
  StepPlan plan;
  try {
    fill(plan);
  } catch (...) {
    settle(plan);
    throw;
  }
  return plan;
}

void Scheduler::fill(StepPlan& plan) {
  int64_t budget = limits_.max_step_tokens;
  std::vector<Sequence*> order;
  for (const Owner& owner : running_) {
    owner->planned = false;
    order.push_back(owner.get());
  }
  std::stable_sort(order.begin(), order.end(), [](const Sequence* a, const Sequence* b) {
    const bool decodes = a->remaining() == 1;
    return decodes != (b->remaining() == 1) ? decodes : before(*a, *b);
  });
  const int64_t preempted = preemptions_;
  for (Sequence* sequence : order) {
    if (budget <= 0) break;
    // It may have been preempted for one before it.
    if (sequence->running) add_run(*sequence, budget, plan);
  }
  while (preemptions_ == preempted && budget > 0 && !waiting_.empty() && running() < limits_.max_sequences) {
    if (!admit(budget, plan)) break;
    if (!plan.runs.empty() && plan.runs.back().sequence == running_.back().get()) add_copies(plan);
  }
  // Last: what others wait for is never left out for a guess.
  for (PlannedRun& run : plan.runs) add_draft(budget, run, plan);
  prefixes_.plan_snapshots(plan);
  for (PlannedRun& run : plan.runs) add_states(run, plan);
}

// A state is what all rows before it have made of it: of a draft that of each row is kept, until it is known
// how many of them count. Without room for all of them the draft is shorter.
void Scheduler::add_states(PlannedRun& run, StepPlan& plan) {
  if (run.drafted == 0 || limits_.state_slots == 0) return;
  run.states.reserve(static_cast<size_t>(run.drafted) + 1);  // no slot is taken where memory runs out
  while (static_cast<int64_t>(run.states.size()) < run.drafted) {
    const int64_t slot = prefixes_.take_spare();
    if (slot < 0) break;
    run.states.push_back(slot);
  }
  const int64_t less = run.drafted - static_cast<int64_t>(run.states.size());
  run.drafted -= less;
  run.count -= less;
  plan.rows -= less;
  if (run.drafted == 0) return;
  run.states.push_back(run.sequence->slot);
  run.state = run.states.size() - 1;
}

void Scheduler::accept(PlannedRun& run) {
  ++run.sequence->computed;
  if (!run.states.empty()) run.sequence->slot = run.states[++run.state];
}

void Scheduler::settle(const StepPlan& plan) {
  for (const PlannedRun& run : plan.runs) {
    for (size_t i = 0; i < run.states.size(); ++i)
      if (i != run.state) prefixes_.release_spare(run.states[i]);
  }
}

void Scheduler::computed(StepPlan& plan) {
  for (PlannedRun& run : plan.runs) {
    run.sequence->computed += run.known();
    if (!run.states.empty()) run.sequence->slot = run.states[run.state = 0];
    for (Sequence* copy : run.copies) copy->computed = run.sequence->computed;
  }
  prefixes_.computed(plan);
}

void Scheduler::weights_changed() {
  prefixes_.weights_changed();
  for (const Owner& owner : running_) owner->shares = false;
}

void Scheduler::preempt_all() {
  while (!running_.empty()) {
    const auto owner = running_.begin();
    release(**owner);
    enqueue(running_, owner);
  }
}

void Scheduler::drop() {
  pool_.clear_index();
  preempt_all();
  for (const Owner& owner : waiting_) release(*owner);  // one was perhaps being admitted
}

void Scheduler::report(Sequence& sequence) {
  reported_.push_back(sequence.request.id);
}

std::vector<RolloutOutput> Scheduler::take_outputs() {
  std::vector<RolloutOutput> outputs;
  outputs.reserve(ended_.size() + reported_.size());  // nothing is lost where memory runs out
  for (const Owner& owner : ended_) outputs.push_back(std::move(owner->output));
  ended_.clear();
  std::sort(reported_.begin(), reported_.end());
  reported_.erase(std::unique(reported_.begin(), reported_.end()), reported_.end());
  for (const uint64_t id : reported_) {
    Sequence* sequence = find(id);
    if (sequence == nullptr) continue;
    sequence->output.needs_mask = !sequence->may_sample();
    RolloutOutput next;
    next.id = id;
    next.cached_tokens = sequence->output.cached_tokens;
    // Those of a prompt go out whole.
    if (sequence->computed + 1 < sequence->prompt_length())
      next.prompt_log_probs = std::move(sequence->output.prompt_log_probs);
    outputs.push_back(std::exchange(sequence->output, std::move(next)));
  }
  reported_.clear();
  return outputs;
}

}  // namespace troupe
