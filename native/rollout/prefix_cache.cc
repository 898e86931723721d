// Chains of pages, and snapshots behind them.
#include "rollout/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "rollout/kv_cache.h"

namespace troupe {

PrefixCache::PrefixCache(PagePool& pool, bool enabled, int64_t state_slots)
    : pool_(pool), enabled_(enabled), slots_(state_slots) {
  if (has_states()) pool_.when_forgotten([this](int32_t page) { slots_.forget(page); });
}

uint64_t PrefixCache::root(const Sequence& sequence) {
  return sequence.request.salt * 0x9e3779b97f4a7c15;
}

uint64_t PrefixCache::parent(const Sequence& sequence) {
  uint64_t parent = sequence.chain;
  const int64_t page = sequence.chained * kPagePositions;
  // The tokens of all images are equal: pages with some are shared under the same images alone, and what
  // comes before an image is shared whatever it is.
  for (size_t i = 0; i < sequence.images.size(); ++i) {
    const int64_t position = sequence.images[i].position;
    if (page <= position && position < page + kPagePositions)
      parent = PagePool::with(parent, sequence.request.images[i].hash);
  }
  return parent;
}

void PrefixCache::match(Sequence& sequence) {
  sequence.chain = root(sequence);
  if (!enabled_) return;
  std::vector<uint64_t> chains;  // before each page; of a model with states
  // Prompt log-probs need the hidden states of every position, which the cache does not have.
  const bool looks = !sequence.wants_prompt_log_probs();
  while (looks && sequence.computed + kPagePositions < sequence.length()) {
    const int32_t* tokens = sequence.tokens.data() + sequence.computed;
    const uint64_t before = parent(sequence);
    const int32_t page = pool_.find(before, tokens);
    if (page < 0) break;
    sequence.pages.push_back(page);
    pool_.hold(page);
    if (has_states()) chains.push_back(sequence.chain);
    sequence.chain = PagePool::chain(before, tokens);
    ++sequence.chained;
    sequence.computed += kPagePositions;
  }
  if (has_states()) return match_states(sequence, std::move(chains));
  if (looks) match_tail(sequence);
}

// A sequence that continues one that has ended (the next turn of a conversation) copies its last, partly
// filled page instead of computing those positions again.
bool PrefixCache::match_tail(Sequence& sequence) {
  const PagePool::Tail tail =
      pool_.find_tail(parent(sequence), sequence.tokens.data() + sequence.computed, sequence.remaining() - 1);
  // The tail's page is held beside those of the sequence until it is copied: only where there is room for
  // both.
  const int64_t wanted = KvCache::pages_for(sequence.length()) - static_cast<int64_t>(sequence.pages.size());
  if (tail.page < 0 || pool_.available() <= wanted) return false;
  // A state is that behind all of it.
  if (has_states() && (!tail.whole || slots_.find(tail.page) < 0)) return false;
  pool_.hold(tail.page);
  sequence.tail = tail.page;
  pool_.take(sequence.pages);
  sequence.computed += tail.count;
  return true;
}

// Of the pages that the sequence has found it keeps those up to the last one with a snapshot.
void PrefixCache::match_states(Sequence& sequence, std::vector<uint64_t> chains) {
  const int64_t common = sequence.computed;
  const bool looks = !sequence.wants_prompt_log_probs();
  int32_t page = -1;
  while (looks && page < 0) {
    if (match_tail(sequence)) {
      page = sequence.tail;
    } else if (sequence.pages.empty()) {
      break;
    } else if (slots_.find(sequence.pages.back()) >= 0) {
      page = sequence.pages.back();
    } else {
      pool_.release(sequence.pages.back());
      sequence.pages.pop_back();
      sequence.chain = chains.back();
      chains.pop_back();
      --sequence.chained;
      sequence.computed -= kPagePositions;
    }
  }
  if (page >= 0) {
    slots_.touch(page);
    sequence.snapshot = slots_.find(page);
  }
  const int64_t last = (sequence.length() - 1) / kPagePositions * kPagePositions;
  sequence.marks = {{common, 0}, {last, 0}};
}

void PrefixCache::put(Sequence& sequence, int64_t positions) {
  if (!enabled_ || !sequence.shares) return;
  while ((sequence.chained + 1) * kPagePositions <= positions) {
    const int32_t* tokens = sequence.tokens.data() + sequence.chained * kPagePositions;
    const uint64_t before = parent(sequence);
    pool_.put(before, tokens, sequence.pages[static_cast<size_t>(sequence.chained)]);
    sequence.chain = PagePool::chain(before, tokens);
    ++sequence.chained;
    for (Sequence::Mark& mark : sequence.marks)
      if (mark.position == sequence.chained * kPagePositions) mark.chain = sequence.chain;
  }
}

void PrefixCache::plan_snapshots(StepPlan& plan) {
  for (PlannedRun& run : plan.runs) {
    const Sequence& sequence = *run.sequence;
    for (const Sequence::Mark& mark : sequence.marks) {
      const int64_t count = mark.position - sequence.computed;
      if (count <= 0 || count > run.count) continue;
      // Its own page, or one of the same tokens, which may have gone since.
      const int32_t page =
          pool_.find_end(mark.chain, sequence.tokens.data() + mark.position - kPagePositions);
      if (page < 0 || slots_.has(page)) continue;
      const int64_t slot = slots_.take();
      if (slot < 0) return;
      slots_.keep(slot, page, /*ready=*/false);
      run.snapshots.push_back({count, slot});
    }
  }
}

void PrefixCache::computed(const StepPlan& plan) {
  for (const PlannedRun& run : plan.runs) release_tail(*run.sequence);
  slots_.make_ready();
}

void PrefixCache::leave(Sequence& sequence) {
  const int64_t count = sequence.computed - sequence.chained * kPagePositions;
  const int32_t* tokens = sequence.tokens.data() + sequence.chained * kPagePositions;
  // One whose tail has not been copied yet has nothing of its own.
  if (!enabled_ || !sequence.shares || sequence.tail >= 0 || sequence.computed == 0) return;
  int32_t page = -1;
  if (count > 0) {
    const int32_t last = sequence.pages[static_cast<size_t>(sequence.chained)];
    pool_.put_tail(parent(sequence), tokens, count, last);
    page = last;
  } else if (has_states()) {
    page = pool_.find_end(sequence.chain, tokens - kPagePositions);
  }
  if (page >= 0 && sequence.slot >= 0) slots_.keep(std::exchange(sequence.slot, -1), page, /*ready=*/true);
}

void PrefixCache::take_slot(Sequence& sequence, StepPlan& plan) {
  if (!has_states()) return;
  sequence.slot = slots_.take();
  require(sequence.slot >= 0, ErrorCode::kInternal, "[rollout] all ", slots_.size(),
          " slots of states are held");
  // Where there was no other slot it has the snapshot's own.
  const int64_t from = std::exchange(sequence.snapshot, -1);
  if (from >= 0 && from != sequence.slot) plan.state_copies.emplace_back(from, sequence.slot);
}

void PrefixCache::release(Sequence& sequence) {
  release_tail(sequence);
  if (sequence.slot >= 0) slots_.release(std::exchange(sequence.slot, -1));
  sequence.snapshot = -1;
}

void PrefixCache::release_tail(Sequence& sequence) {
  if (sequence.tail >= 0) pool_.release(std::exchange(sequence.tail, -1));
}

void PrefixCache::weights_changed() {
  pool_.clear_index();
}

}  // namespace troupe
