// Search of matches, and what is remembered.
#include "rollout/drafter.h"

#include <algorithm>
#include <new>

#include "base/error.h"
#include "rollout/page_pool.h"

namespace troupe {
namespace {

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

// What is searched for one guess at most: some tens of microseconds, where a step takes milliseconds.
constexpr int64_t kMostSearched = int64_t{1} << 17;
// Bounds what places that match nearly everywhere cost.
constexpr int64_t kLongestMatch = 256;
// Of each rate: what is older counts half.
constexpr double kRecent = 64;

// Where a draft may be taken from.
struct Match {
  int64_t length = 0;
  const int32_t* next = nullptr;  // what follows it, so many tokens
  int64_t count = 0;
};

uint64_t family_of(const RolloutRequest& request) {
  uint64_t key = PagePool::with(request.salt, request.prompt.size());
  for (const int32_t token : request.prompt) key = PagePool::with(key, static_cast<uint64_t>(token));
  return key;
}

// The last place before `end` with this token; -1: none. Blocks without one are left out by vectors.
int64_t last_place(const int32_t* text, int64_t end, int32_t token) {
  constexpr int64_t kBlock = 64;
  for (; end >= kBlock; end -= kBlock) {
    int32_t found = 0;
    for (int64_t i = 0; i < kBlock; ++i) found |= text[end - kBlock + i] == token ? 1 : 0;
    if (found != 0) break;
  }
  while (--end >= 0 && text[end] != token) {
  }
  return end;
}

// Looks in text [0, end) for places of the last of `tokens`, at least `least` and at most `most` of them,
// with something behind them. A longer match than `best`, or one as long with more of the `wanted` tokens
// behind it, becomes it; the last places are tried first.
void search(const int32_t* text, int64_t end, const std::vector<int32_t>& tokens, int64_t least, int64_t most,
            int64_t wanted, Match& best) {
  const auto length = static_cast<int64_t>(tokens.size());
  const int32_t* const last = tokens.data() + length - 1;
  for (int64_t place = end - 1; best.length < most || best.count < wanted;) {
    place = last_place(text, place, *last) + 1;
    if (place <= 0) return;
    const int32_t* const at = text + place - 1;  // the last token of the match
    const int64_t longest = std::min({most, place, length}), count = std::min(end - place, wanted);
    int64_t same = 1;
    while (same < longest && at[-same] == last[-same]) ++same;
    const bool better = same > best.length || (same == best.length && count > best.count);
    if (same >= least && better) best = {same, text + place, count};
    --place;
  }
}

}  // namespace

Drafter::Drafter(const DraftOptions& options) : options_(options) {
  require(options.num_tokens >= 0, kBad, "[rollout] expected num_speculative_tokens >= 0 but got ",
          options.num_tokens);
  require(
      options.min_match >= 1 && options.min_match <= options.max_match && options.max_match <= kLongestMatch,
      kBad, "[rollout] expected 1 <= prompt_lookup_min <= prompt_lookup_max <= ", kLongestMatch, " but got ",
      options.min_match, " and ", options.max_match);
  require(options.max_sequences >= 1, kBad, "[rollout] expected disable_by_batch_size >= 1 but got ",
          options.max_sequences);
  require(options.remembered_tokens >= 0, kBad, "[rollout] expected history_tokens >= 0 but got ",
          options.remembered_tokens);
  rates_.resize(
      static_cast<size_t>(options.predicts ? std::max<int64_t>(options.num_tokens, 1) : options.max_match));
}

void Drafter::begin(Sequence& sequence) {
  if (!looks_up()) return;
  sequence.family = family_of(sequence.request);
  const auto [family, added] = families_.try_emplace(sequence.family);
  try {
    family->second.running.push_back(&sequence);
  } catch (...) {
    if (added) families_.erase(family);
    throw;
  }
}

void Drafter::end(const Sequence& sequence) {
  if (!looks_up()) return;
  Family& family = families_.at(sequence.family);
  std::erase(family.running, &sequence);
  const int64_t before = std::min(sequence.prompt_length(), options_.max_match);
  const int64_t count = before + sequence.response_length();
  if (sequence.response_length() > 0 && count <= options_.remembered_tokens) {
    try {
      std::list<std::vector<int32_t>> text;
      text.emplace_back(sequence.tokens.end() - count, sequence.tokens.end());
      order_.push_back(sequence.family);
      family.ended.splice(family.ended.end(), text);
      remembered_ += count;
    } catch (const std::bad_alloc&) {
      // Others of its prompt have one text less to look for drafts in.
    }
    while (remembered_ > options_.remembered_tokens) forget_oldest();
  }
  if (family.running.empty() && family.ended.empty()) families_.erase(sequence.family);
}

void Drafter::forget_oldest() {
  const auto family = families_.find(order_.front());
  order_.pop_front();
  std::list<std::vector<int32_t>>& ended = family->second.ended;
  remembered_ -= static_cast<int64_t>(ended.front().size());
  ended.pop_front();
  if (ended.empty() && family->second.running.empty()) families_.erase(family);
}

size_t Drafter::rate_of(const Guess& guess, int64_t at) const {
  return std::min(static_cast<size_t>(guess.match + at), rates_.size()) - 1;
}

int64_t Drafter::worth(const Guess& guess, int64_t sequences) const {
  const double least = static_cast<double>(sequences) / static_cast<double>(options_.max_sequences);
  double probability = 1;
  for (int64_t i = 0; i < static_cast<int64_t>(guess.tokens.size()); ++i) {
    probability *= rates_[rate_of(guess, i)].probability();
    if (probability < least) return i;
  }
  return static_cast<int64_t>(guess.tokens.size());
}

int64_t Drafter::depth(int64_t sequences) const {
  if (!options_.predicts) return options_.num_tokens;
  const Guess longest{1, std::vector<int32_t>(static_cast<size_t>(options_.num_tokens))};
  return std::min(worth(longest, sequences) + 1, options_.num_tokens);
}

void Drafter::guessed(const Guess& guess, int64_t at, bool right) {
  Rate& rate = rates_[rate_of(guess, at)];
  rate.all += 1;
  rate.right += right ? 1 : 0;
  if (rate.all > kRecent) rate = {rate.right / 2, rate.all / 2};
}

Guess Drafter::guess(const Sequence& sequence, int64_t count) const {
  count = std::min(count, options_.num_tokens);
  if (count <= 0) return {};
  if (options_.predicts) {
    const std::vector<int32_t>& tokens = sequence.predicted;
    const auto most = std::min(count, static_cast<int64_t>(tokens.size()));
    return {1, {tokens.begin(), tokens.begin() + most}};
  }
  Match best;
  int64_t left = kMostSearched;
  // Of a text that is longer, its last part.
  const auto look = [&](const std::vector<int32_t>& text, int64_t begin) {
    const auto end = static_cast<int64_t>(text.size());
    begin = std::max(begin, end - left);
    left -= end - begin;
    search(text.data() + begin, end - begin, sequence.tokens, options_.min_match, options_.max_match, count,
           best);
  };
  look(sequence.tokens, 0);
  const Family& family = families_.at(sequence.family);
  for (const Sequence* other : family.running) {
    if (other == &sequence || other->response_length() == 0) continue;
    look(other->tokens, std::max<int64_t>(0, other->prompt_length() - options_.max_match));
  }
  for (auto text = family.ended.rbegin(); text != family.ended.rend(); ++text) look(*text, 0);
  return {best.length, {best.next, best.next + best.count}};
}

}  // namespace troupe
