// The choice of a token by a team: the threads of a CUDA block, or one thread of a CPU.
#pragma once

#include <cstring>

#include "kernels/token_choice.h"

#ifdef __CUDACC__
#define TROUPE_TEAM_CODE __device__
#else
#define TROUPE_TEAM_CODE
#endif

// A team has rank() and size(), sync() (all see what all have written), add() (of an integer that all share,
// returns what it was), least() (keeps the lesser) and weight() (exp((x - max) * inv_temperature)). Every
// function is called by all of its threads with the same arguments and returns the same to all.
namespace troupe::kernels {

constexpr int64_t kMostCandidates = 2048;
constexpr int kDigits = 256;

// What a team shares while it chooses.
struct ChoiceScratch {
  uint64_t keys[kMostCandidates];  // of candidates, most probable first
  float weights[kMostCandidates];  // theirs, or those of a block
  int32_t histogram[kDigits];
  int32_t count;
  int32_t index;
  int64_t wanted;
  uint64_t selected;
  double before;
};

// A row as passes over all of it left it, in blocks of kLogitBlock entries.
struct LogitScan {
  const float* logits;  // [vocab]
  int64_t vocab;
  float max;            // NaN when an entry is NaN or +infinity
  const float* maxima;  // [blocks]
  const double* sums;   // [blocks] of exp((logit - max) * inverse_temperature)
  double* groups;       // [sum_groups(blocks)]: scratch

  TROUPE_TEAM_CODE int64_t blocks() const { return logit_blocks(vocab); }
  TROUPE_TEAM_CODE bool finite() const { return max - max == 0; }
};

// ---- keys: more probable is larger, and no real logit has the key 0 ----

TROUPE_TEAM_CODE inline uint32_t order_of(float x) {
  const float value = x == 0 ? 0.0f : x;  // one zero
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
TROUPE_TEAM_CODE inline uint64_t key_of(float x, int64_t token) {
  return uint64_t{order_of(x)} << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}
TROUPE_TEAM_CODE inline int32_t token_of(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// The wanted-th largest of key(i), i < n, of which so many are not 0: digit by digit from the highest.
template <typename Key, typename Team, typename KeyAt>
TROUPE_TEAM_CODE Key select_key(const Team& team, int64_t n, int64_t wanted, const KeyAt& key_at,
                                ChoiceScratch& scratch) {
  Key prefix = 0;
  for (int shift = static_cast<int>(sizeof(Key)) * 8 - 8; shift >= 0; shift -= 8) {
    for (int64_t i = team.rank(); i < kDigits; i += team.size()) scratch.histogram[i] = 0;
    team.sync();
    for (int64_t i = team.rank(); i < n; i += team.size()) {
      const Key key = key_at(i);
      // In two shifts: one by all bits of a key has no meaning.
      if (key >> shift >> 8 == prefix >> shift >> 8) team.add(&scratch.histogram[key >> shift & 255], 1);
    }
    team.sync();
    if (team.rank() == 0) {
      int digit = kDigits - 1;
      for (; digit > 0 && scratch.histogram[digit] < wanted; --digit) wanted -= scratch.histogram[digit];
      scratch.selected = prefix | static_cast<Key>(digit) << shift;
      scratch.wanted = wanted;
    }
    team.sync();
    prefix = static_cast<Key>(scratch.selected);
    wanted = scratch.wanted;
  }
  return prefix;
}

// Sorts keys [n], n a power of two, largest first (Batcher's bitonic network).
template <typename Team>
TROUPE_TEAM_CODE void sort_keys(const Team& team, uint64_t* keys, int64_t n) {
  for (int64_t run = 2; run <= n; run *= 2) {
    for (int64_t apart = run / 2; apart > 0; apart /= 2) {
      for (int64_t i = team.rank(); i < n / 2; i += team.size()) {
        const int64_t low = i / apart * 2 * apart + i % apart, high = low + apart;
        const bool descending = (low & run) == 0;
        if ((keys[low] < keys[high]) == descending) {
          const uint64_t key = keys[low];
          keys[low] = keys[high];
          keys[high] = key;
        }
      }
      team.sync();
    }
  }
}

// The `count` (at most kMostCandidates and vocab) most probable tokens, by logit * factor, to scratch.keys.
template <typename Team>
TROUPE_TEAM_CODE void gather_candidates(const Team& team, const LogitScan& row, float factor, int64_t count,
                                        ChoiceScratch& scratch) {
  const int64_t blocks = row.blocks();
  const auto order_in = [&](int64_t block) { return order_of(row.maxima[block] * factor); };
  // The count-th largest block maximum is no larger than the count-th largest logit.
  const uint32_t threshold =
      count > blocks ? 0 : select_key<uint32_t>(team, blocks, count, order_in, scratch);
  const auto key_at = [&](int64_t token) {
    if (order_in(token / kLogitBlock) < threshold) return uint64_t{0};
    const float logit = row.logits[token] * factor;
    return order_of(logit) < threshold ? uint64_t{0} : key_of(logit, token);
  };
  uint64_t least = 1;
  const auto collect = [&] {
    if (team.rank() == 0) scratch.count = 0;
    team.sync();
    for (int64_t token = team.rank(); token < row.vocab; token += team.size()) {
      const uint64_t key = key_at(token);
      if (key < least) continue;
      const int32_t place = team.add(&scratch.count, 1);
      if (place < kMostCandidates) scratch.keys[place] = key;
    }
    team.sync();
    const int32_t found = scratch.count;
    team.sync();
    return found;
  };
  int64_t found = collect();
  if (found > kMostCandidates) {  // equal logits, or many that are nearly so
    least = select_key<uint64_t>(team, row.vocab, count, key_at, scratch);
    found = collect();
  }
  int64_t padded = 1;
  while (padded < found) padded *= 2;
  for (int64_t i = found + team.rank(); i < padded; i += team.size()) scratch.keys[i] = 0;
  team.sync();
  sort_keys(team, scratch.keys, padded);
}

// The sum of all weights; leaves those of groups in row.groups.
template <typename Team>
TROUPE_TEAM_CODE double row_sum(const Team& team, const LogitScan& row) {
  const int64_t groups = sum_groups(row.blocks());
  team.sync();  // someone may still read what was there
  for (int64_t g = team.rank(); g < groups; g += team.size())
    row.groups[g] = group_sum(row.sums, row.blocks(), g);
  team.sync();
  return total(row.groups, groups);
}

// The first of `n` for which holds(i).
template <typename Team, typename Holds>
TROUPE_TEAM_CODE int64_t first_of(const Team& team, int64_t n, const Holds& holds, ChoiceScratch& scratch) {
  if (team.rank() == 0) scratch.index = std::numeric_limits<int32_t>::max();
  team.sync();
  for (int64_t i = team.rank(); i < n; i += team.size()) {
    if (holds(i)) team.least(&scratch.index, static_cast<int32_t>(i));
  }
  team.sync();
  const int64_t first = scratch.index;
  team.sync();
  return first;
}

TROUPE_TEAM_CODE inline int64_t block_entries(const LogitScan& row, int64_t block) {
  const int64_t left = row.vocab - block * kLogitBlock;
  return left < kLogitBlock ? left : kLogitBlock;
}

template <typename Team>
TROUPE_TEAM_CODE int32_t greedy_token(const Team& team, const LogitScan& row, ChoiceScratch& scratch) {
  const int64_t block = first_of(
      team, row.blocks(), [&](int64_t b) { return row.maxima[b] == row.max; }, scratch);
  const float* entries = row.logits + block * kLogitBlock;
  const int64_t entry = first_of(
      team, block_entries(row, block), [&](int64_t i) { return entries[i] == row.max; }, scratch);
  return static_cast<int32_t>(block * kLogitBlock + entry);
}

// The inverse of the whole row's distribution.
template <typename Team>
TROUPE_TEAM_CODE int32_t unfiltered_token(const Team& team, const LogitScan& row, const TokenWish& wish,
                                          ChoiceScratch& scratch) {
  const double target = wish.uniform * row_sum(team, row);
  if (team.rank() == 0) {
    const Position block = find_block(row.groups, row.sums, row.blocks(), target);
    scratch.index = static_cast<int32_t>(block.index);
    scratch.before = block.before;
  }
  team.sync();
  const int64_t block = scratch.index, entries = block_entries(row, block);
  const float inverse = inverse_temperature(wish.options);
  for (int64_t i = team.rank(); i < entries; i += team.size())
    scratch.weights[i] = team.weight(row.logits[block * kLogitBlock + i], row.max, inverse);
  team.sync();
  if (team.rank() == 0) {
    const Position entry = find_position(scratch.weights, entries, target - scratch.before);
    scratch.index = static_cast<int32_t>(block * kLogitBlock + entry.index);
  }
  team.sync();
  const int32_t token = scratch.index;
  team.sync();
  return token;
}

// The inverse of the distribution over the kept set; -1: it may be wider than kMostCandidates.
template <typename Team>
TROUPE_TEAM_CODE int32_t filtered_token(const Team& team, const LogitScan& row, const TokenWish& wish,
                                        ChoiceScratch& scratch) {
  const float inverse = inverse_temperature(wish.options);
  const double sum = row_sum(team, row);
  for (int64_t count = first_count(wish.options, row.vocab); count <= kMostCandidates;) {
    gather_candidates(team, row, 1.0f, count, scratch);
    for (int64_t i = team.rank(); i < count; i += team.size())
      scratch.weights[i] = team.weight(row.logits[token_of(scratch.keys[i])], row.max, inverse);
    team.sync();
    if (team.rank() == 0) {
      int64_t kept = count;
      scratch.index = -1;
      if (cut_to_kept(wish.options, row.vocab, scratch.weights, sum, kept)) {
        const double target = wish.uniform * total(scratch.weights, kept);
        scratch.index = token_of(scratch.keys[find_position(scratch.weights, kept, target).index]);
      }
    }
    team.sync();
    const int32_t token = scratch.index;
    team.sync();
    if (token >= 0) return token;
    // The widest look before the host's: kMostCandidates.
    const int64_t next = next_count(count, row.vocab);
    count = next > kMostCandidates && count < kMostCandidates ? kMostCandidates : next;
  }
  return -1;
}

TROUPE_TEAM_CODE inline int32_t word_of(float x) {
  int32_t word;
  std::memcpy(&word, &x, sizeof(word));
  return word;
}

// Does what `wish` says with a row of logits and, where it samples from others, the changed ones (else `from`
// is `row`); out [choice_words(wish.top)].
template <typename Team>
TROUPE_TEAM_CODE void choose_token(const Team& team, const LogitScan& row, const LogitScan& from,
                                   const TokenWish& wish, ChoiceScratch& scratch, int32_t* out) {
  const SamplerOptions& options = wish.options;
  const int64_t top = wish.top < row.vocab ? wish.top : row.vocab;
  int32_t token = wish.target;
  ChoiceOutcome outcome = kChosen;
  if (!row.finite()) {
    outcome = kNotFinite;
  } else if (!from.finite()) {
    outcome = kNoneLeft;
  } else if (token < 0) {
    token = options.temperature == 0        ? greedy_token(team, from, scratch)
            : filtered(options, from.vocab) ? filtered_token(team, from, wish, scratch)
                                            : unfiltered_token(team, from, wish, scratch);
  }
  if (outcome == kChosen && (token < 0 || top > kMostCandidates)) outcome = kTooWide;
  if (team.rank() == 0) out[0] = outcome;
  if (outcome != kChosen) return;
  const double sum = row_sum(team, row);
  if (team.rank() == 0) {
    out[1] = token;
    out[2] = word_of(choice_log_prob(options, row.logits[token], row.max, sum));
  }
  if (top == 0) return;
  gather_candidates(team, row, inverse_temperature(options), top, scratch);
  for (int64_t i = team.rank(); i < top; i += team.size()) {
    const int32_t likely = token_of(scratch.keys[i]);
    out[3 + 2 * i] = likely;
    out[4 + 2 * i] = word_of(choice_log_prob(options, row.logits[likely], row.max, sum));
  }
}

// out [vocab] = logits, changed; in their place where out is logits.
template <typename Team>
TROUPE_TEAM_CODE void change_logits(const Team& team, const float* logits, int64_t vocab,
                                    const RowChanges& by, const LogitChanges& changes, float* out) {
  if (out != logits) {
    for (int64_t i = team.rank(); i < vocab; i += team.size()) out[i] = logits[i];
    team.sync();
  }
  for (int64_t i = by.seen_begin + team.rank(); i < by.seen_end; i += team.size()) {
    const SeenToken seen = changes.seen[i];
    out[seen.token] = penalised(by, seen.times, out[seen.token]);
  }
  team.sync();
  for (int64_t i = by.bias_begin + team.rank(); i < by.bias_end; i += team.size()) {
    const int32_t token = changes.biases[i].token;
    // One thread takes all of a token.
    if (i > by.bias_begin && changes.biases[i - 1].token == token) continue;
    for (int64_t j = i; j < by.bias_end && changes.biases[j].token == token; ++j)
      out[token] = biased(out[token], changes.biases[j].bias);
  }
  team.sync();
  if (by.mask_words == 0) return;
  const uint32_t* words = changes.words + by.mask_begin;
  for (int64_t i = team.rank(); i < vocab; i += team.size()) {
    const bool allowed = i / 32 < by.mask_words && (words[i / 32] >> (i % 32) & 1) != 0;
    if (!allowed) out[i] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace troupe::kernels
