#include <ATen/ops/full.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "kernels/paged_attention.h"
#include "rollout/scheduler.h"

// Random requests through a scheduler whose steps are played with symbols: a slot and every position of a
// page hold the hash of all tokens, and of the images that these stand for, that went into them. Whatever a
// sequence finds must be what it would have made.

using namespace troupe;
using kernels::kPagePositions;

namespace {

using Tokens = std::vector<int32_t>;
constexpr int32_t kImageToken = 5000;  // of every image

struct Prompt {
  Tokens tokens;
  std::vector<Image> images;
  std::vector<ImageSpan> spans;

  void push(const Image& image) {
    spans.push_back({static_cast<int64_t>(tokens.size()), image.height, image.width});
    images.push_back(image);
    tokens.resize(static_cast<size_t>(spans.back().end()), kImageToken);
  }
  // To `size` tokens, or as many as there are before an image that they would cut.
  void cut(size_t size) {
    tokens.resize(size);
    while (!spans.empty() && spans.back().end() > static_cast<int64_t>(tokens.size())) {
      if (spans.back().position < static_cast<int64_t>(tokens.size()))
        tokens.resize(static_cast<size_t>(spans.back().position));
      spans.pop_back();
      images.pop_back();
    }
    if (tokens.empty()) tokens.push_back(1);
  }
};

struct Setting {
  int64_t sequences, slots, pages, step_tokens;
  bool chunked = true;
  bool images = false;
};

uint64_t next_hash(uint64_t hash, int32_t token, uint64_t weights) {
  return PagePool::with(PagePool::with(hash, static_cast<uint64_t>(token)), weights);
}

class Play {
 public:
  Play(const Setting& setting, uint64_t seed)
      : setting_(setting),
        pool_(setting.pages),
        scheduler_({setting.sequences, setting.step_tokens, kLongest, setting.chunked, true, setting.slots},
                   pool_),
        slots_(static_cast<size_t>(setting.slots)),
        pages_(static_cast<size_t>(setting.pages * kPagePositions)),
        random_(seed) {}

  void run(int64_t requests) {
    int64_t submitted = 0;
    while (submitted < requests || scheduler_.running() + scheduler_.waiting() > 0) {
      while (submitted < requests && scheduler_.waiting() < 3) submit(submitted++);
      if (chance(10) && !live_.empty()) abort(*std::next(live_.begin(), below(live_.size())));
      if (chance(300)) {
        ++weights_;
        if (chance(2)) scheduler_.preempt_all();
        scheduler_.weights_changed();
      }
      for (const uint64_t id : live_) {
        Sequence* sequence = scheduler_.find(id);
        if (!sequence->may_sample() && chance(2)) sequence->has_mask = true;
      }
      step();
    }
    CHECK(pool_.held() == 0 && scheduler_.slots().held() == 0);
    pool_.clear_index();
    CHECK(scheduler_.slots().snapshots() == 0);
  }

  int64_t found() const { return found_; }
  int64_t preemptions() const { return scheduler_.preemptions(); }

 private:
  static constexpr int64_t kLongest = 150;

  size_t below(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
  bool chance(size_t one_in) { return below(one_in) == 0; }
  int32_t token() { return static_cast<int32_t>(below(1000)); }

  // One of some beginnings, or a conversation that goes on, perhaps from before its end.
  void submit(int64_t id) {
    RolloutRequest request;
    Prompt prompt;
    const auto limit = static_cast<size_t>(std::min<int64_t>(kLongest, setting_.pages * kPagePositions) - 20);
    if (!ended_.empty() && !chance(3)) {
      prompt = ended_[below(ended_.size())];
      if (chance(3)) prompt.cut(1 + below(prompt.tokens.size()));
    } else {
      const size_t beginning = below(4);
      for (size_t i = 0; i < 20 + 17 * beginning; ++i)
        prompt.tokens.push_back(static_cast<int32_t>(i * (beginning + 1) % 97));
    }
    if (setting_.images && !chance(3)) prompt.push(image());
    for (size_t more = chance(5) ? 0 : below(30); more > 0; --more) prompt.tokens.push_back(token());
    if (prompt.tokens.size() > limit) prompt.cut(limit);
    request.prompt = prompt.tokens;
    request.images = prompt.images;
    request.sampling.max_new_tokens = static_cast<int64_t>(1 + below(20));
    request.sampling.constrained = chance(8);
    request.sampling.prompt_log_probs = chance(20);
    request.priority = static_cast<double>(below(2));
    request.salt = below(2);
    if (!last_.prompt.empty() && chance(4)) {  // another sample of it
      request = last_;
      prompt.spans = last_spans_;
    }
    request.id = static_cast<uint64_t>(id);
    live_.insert(request.id);
    last_ = request;
    last_spans_ = prompt.spans;
    scheduler_.submit(std::move(request), std::move(prompt.spans));
  }

  // One of three of each of two sizes.
  Image image() {
    const int64_t which = static_cast<int64_t>(below(3)), width = chance(2) ? 3 : 20;
    const at::Tensor pixels = at::full({2, width, 3}, which, at::kByte);
    return {2, width, pixels, static_cast<uint64_t>(100 * width + which)};
  }

  void end(uint64_t id) {
    live_.erase(id);
    scheduler_.take_outputs();
  }

  void abort(uint64_t id) {
    remember(*scheduler_.find(id));
    scheduler_.abort(id);
    end(id);
  }

  void remember(const Sequence& sequence) {
    const Prompt ended{sequence.tokens, sequence.request.images, sequence.images};
    if (ended_.size() < 12) {
      ended_.push_back(ended);
    } else {
      ended_[below(ended_.size())] = ended;
    }
  }

  uint64_t& at(const Sequence& sequence, int64_t position) {
    const int32_t page = sequence.pages[static_cast<size_t>(position / kPagePositions)];
    return pages_[static_cast<size_t>(page * kPagePositions + position % kPagePositions)];
  }

  // What a sequence goes on from, a salt's own.
  static uint64_t root(const Sequence& sequence) { return PagePool::with(77, sequence.request.salt); }

  // Behind one more position of it.
  uint64_t next(uint64_t hash, const Sequence& sequence, int64_t position) const {
    hash = next_hash(hash, sequence.tokens[static_cast<size_t>(position)], weights_);
    for (size_t i = 0; i < sequence.images.size(); ++i) {
      const ImageSpan& span = sequence.images[i];
      if (span.position <= position && position < span.end())
        hash = PagePool::with(hash, sequence.request.images[i].hash);
    }
    return hash;
  }

  void check(const Sequence& sequence) {
    // One that has gone on under other weights has something of both.
    if (sequence.computed == 0 || !sequence.shares) return;
    uint64_t hash = root(sequence);
    bool right = true;
    for (int64_t i = 0; i < sequence.computed; ++i) {
      hash = next(hash, sequence, i);
      right = right && at(sequence, i) == hash;
    }
    CHECK(right && slots_[static_cast<size_t>(sequence.slot)] == hash);
  }

  void copy_page(int32_t from, int32_t to) {
    std::copy_n(pages_.begin() + from * kPagePositions, kPagePositions, pages_.begin() + to * kPagePositions);
  }

  void step() {
    StepPlan plan = scheduler_.plan();
    for (const auto& [from, to] : plan.state_copies)
      slots_[static_cast<size_t>(to)] = slots_[static_cast<size_t>(from)];
    int64_t planned = 0;
    for (const PlannedRun& run : plan.runs) planned += static_cast<int64_t>(run.snapshots.size());
    const StateSlots& slots = scheduler_.slots();
    CHECK(scheduler_.running() <= setting_.sequences && slots.held() == scheduler_.running() + planned);
    CHECK(scheduler_.running() + slots.snapshots() <= slots.size());
    if (plan.runs.empty()) return;
    for (const PlannedRun& run : plan.runs) {
      const Sequence& sequence = *run.sequence;
      if (sequence.tail >= 0)
        copy_page(sequence.tail, sequence.pages[static_cast<size_t>(sequence.computed / kPagePositions)]);
    }
    for (const PlannedRun& run : plan.runs) check(*run.sequence);
    if (chance(200)) {  // the step fails
      scheduler_.drop();
      CHECK(scheduler_.slots().held() == 0 && scheduler_.slots().snapshots() == 0);
      return;
    }
    for (const PlannedRun& run : plan.runs) compute(run);
    scheduler_.computed(plan);
    for (const PlannedRun& run : plan.runs) {
      if (run.sequence->remaining() > 0) continue;
      sample(*run.sequence);
      for (Sequence* copy : run.copies) sample(*copy);
    }
  }

  void compute(const PlannedRun& run) {
    Sequence& sequence = *run.sequence;
    uint64_t& state = slots_[static_cast<size_t>(sequence.slot)];
    if (sequence.computed == 0) state = root(sequence);
    auto snapshot = run.snapshots.begin();
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t position = sequence.computed + i;
      state = next(state, sequence, position);
      at(sequence, position) = state;
      if (snapshot == run.snapshots.end() || snapshot->count != i + 1) continue;
      CHECK((position + 1) % kPagePositions == 0 && snapshot->slot != sequence.slot);
      slots_[static_cast<size_t>(snapshot++->slot)] = state;
    }
    CHECK(snapshot == run.snapshots.end());
    for (const Sequence* copy : run.copies) {
      slots_[static_cast<size_t>(copy->slot)] = state;
      const auto full = static_cast<size_t>((sequence.computed + run.count) / kPagePositions);
      if (copy->pages.size() > full) copy_page(sequence.pages[full], copy->pages[full]);
    }
  }

  void sample(Sequence& sequence) {
    if (sequence.response_length() == 0) found_ += sequence.output.cached_tokens;
    sequence.tokens.push_back(token());
    sequence.has_mask = false;
    if (sequence.response_length() < sequence.request.sampling.max_new_tokens) return;
    remember(sequence);
    const uint64_t id = sequence.request.id;
    scheduler_.finish(sequence);
    end(id);
  }

  Setting setting_;
  PagePool pool_;
  Scheduler scheduler_;
  std::vector<uint64_t> slots_, pages_;  // what they hold
  std::mt19937_64 random_;
  std::set<uint64_t> live_;
  RolloutRequest last_;
  std::vector<ImageSpan> last_spans_;
  std::vector<Prompt> ended_;
  uint64_t weights_ = 0;
  int64_t found_ = 0;
};

}  // namespace

TEST(sixteen_thousand_random_requests_find_what_they_would_have_made_and_leave_no_slot_behind) {
  const std::vector<Setting> settings{{8, 16, 60, 256},
                                      {4, 4, 24, 40},
                                      {3, 5, 9, 16},
                                      {1, 1, 5, 64},
                                      {16, 20, 40, 128, false},
                                      {8, 16, 60, 256, true, true},
                                      {4, 4, 24, 40, true, true},
                                      {16, 20, 40, 128, false, true}};
  int64_t preemptions = 0;
  for (size_t i = 0; i < settings.size(); ++i) {
    Play play(settings[i], 100 + i);
    play.run(2000);
    // With one slot for all, a snapshot lasts until the next sequence begins.
    CHECK(play.found() > (settings[i].slots > 1 ? 5000 : 100));
    preemptions += play.preemptions();
  }
  CHECK(preemptions > 0);
}

// The same tokens at the same places, whatever the engines do: ranks that decode together, and stages of a
// pipeline, make their plans apart.
static void plan_twice(const DraftOptions& drafts) {
  const Setting setting{4, 6, 24, 40};
  PagePool one(setting.pages), other(setting.pages);
  const SchedulerLimits limits{4, 40, 150, true, true, 6, drafts};
  Scheduler a(limits, one), b(limits, other);
  std::mt19937_64 random(3);
  const auto draw = [&](size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random); };
  std::vector<Tokens> turns(5, Tokens(40, 1));
  for (size_t i = 0; i < turns.size(); ++i) turns[i][20] = static_cast<int32_t>(i);
  int64_t drafted = 0;
  for (uint64_t id = 0; id < 400;) {
    while (a.waiting() < 2) {
      RolloutRequest request;
      request.id = id++;
      request.prompt = turns[draw(turns.size())];
      request.prompt.resize(40 + draw(60), static_cast<int32_t>(id));
      request.sampling.max_new_tokens = 8;
      a.submit(request);
      b.submit(request);
    }
    StepPlan plan = a.plan(), same = b.plan();
    CHECK(plan.state_copies == same.state_copies && plan.runs.size() == same.runs.size());
    for (size_t i = 0; i < std::min(plan.runs.size(), same.runs.size()); ++i) {
      const PlannedRun &x = plan.runs[i], &y = same.runs[i];
      CHECK(x.sequence->request.id == y.sequence->request.id && x.count == y.count);
      CHECK(x.drafted == y.drafted && x.guess.tokens == y.guess.tokens && x.states == y.states);
      drafted += x.drafted;
      CHECK(x.sequence->slot == y.sequence->slot && x.sequence->pages == y.sequence->pages);
      CHECK(x.snapshots.size() == y.snapshots.size());
      for (size_t k = 0; k < std::min(x.snapshots.size(), y.snapshots.size()); ++k)
        CHECK(x.snapshots[k].slot == y.snapshots[k].slot && x.snapshots[k].count == y.snapshots[k].count);
    }
    const auto go_on = [](Scheduler& scheduler, StepPlan& of) {
      scheduler.computed(of);
      for (PlannedRun& run : of.runs) {
        if (run.sequence->remaining() > 0) continue;
        std::vector<Sequence*> all = run.copies;
        all.insert(all.begin(), run.sequence);
        for (Sequence* sequence : all) {
          // Of a draft the first token is right.
          const bool accepted = sequence == run.sequence && run.drafted > 0;
          if (accepted) {
            sequence->tokens.push_back(run.guess.tokens[0]);
            scheduler.guessed(run.guess, 0, true);
            scheduler.accept(run);
          }
          if (sequence->response_length() < 8) sequence->tokens.push_back(2);
          if (sequence->response_length() == 8) scheduler.finish(*sequence);
        }
      }
      scheduler.settle(of);
      scheduler.take_outputs();
    };
    go_on(a, plan);
    go_on(b, same);
  }
  CHECK(a.slots().snapshots() > 0 && a.preemptions() == b.preemptions());
  CHECK((drafted > 0) == (drafts.num_tokens > 0));
}

TEST(equal_requests_make_equal_plans) {
  plan_twice({});
  plan_twice({.num_tokens = 3, .min_match = 1});
}

// A turn that brings another image goes on from all that was there before it.
TEST(what_comes_before_an_image_is_found_whatever_it_is) {
  PagePool pool(40);
  Scheduler scheduler({4, 400, 300, true, true, 0}, pool);
  uint64_t id = 0;
  const auto found = [&](Prompt prompt) {
    RolloutRequest request;
    request.id = ++id;
    request.prompt = prompt.tokens;
    request.images = prompt.images;
    request.sampling.max_new_tokens = 1;
    scheduler.submit(std::move(request), std::move(prompt.spans));
    StepPlan plan = scheduler.plan();
    Sequence& sequence = *plan.runs.at(0).sequence;
    const int64_t cached = sequence.output.cached_tokens;
    scheduler.computed(plan);
    sequence.tokens.push_back(3);
    scheduler.finish(sequence);
    scheduler.take_outputs();
    return cached;
  };
  const auto image = [](int64_t which) {
    return Image{1, 40, at::full({1, 40, 3}, which, at::kByte), static_cast<uint64_t>(which)};
  };
  for (const int32_t text : {50, 64}) {  // it begins within a page, and at the beginning of one
    Prompt one{Tokens(static_cast<size_t>(text), text), {}, {}}, other = one;
    one.push(image(7));
    other.push(image(8));
    for (Prompt* prompt : {&one, &other}) prompt->tokens.resize(140, 2);
    CHECK(found(one) == 0 && found(other) == text / kPagePositions * kPagePositions);
    CHECK(found(one) == 139);
    Prompt two = one;
    two.push(image(8));
    two.tokens.resize(200, 2);
    CHECK(found(two) == 128);
    CHECK(found(two) == 199);
  }
}

TEST_MAIN()
