// Requests in, tokens out: a rollout that goes on for as long as there are requests.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/decoder.h"
#include "rollout/cache_sizes.h"
#include "rollout/kv_cache.h"
#include "rollout/page_pool.h"
#include "rollout/request.h"
#include "rollout/routing_pages.h"
#include "rollout/scheduler.h"
#include "rollout/state_cache.h"
#include "rollout/step_runner.h"
#include "rollout/token_chooser.h"
#include "rollout/token_predictor.h"

namespace troupe {

// Every row of a step is computed apart from the others, and the t-th token of a request is drawn with a
// number that depends on (seed, t) alone. A request's tokens therefore depend on its prompt, its options, its
// seed and the weights: not on what else runs, on the limits, on how prompts are cut, on what is found in the
// cache, on what was drafted, on preemption or on the number of threads. (On a GPU: up to rounding where
// prompts are cut otherwise.)
class Rollout {
 public:
  // kInvalidArgument for options that make no sense, and for a cache without room for a page.
  Rollout(Decoder& decoder, const RolloutOptions& options);

  // kInvalidArgument, naming what is wrong, for what makes no sense or can never be served.
  void submit(RolloutRequest request);
  // Ends it with what it has: with RolloutOptions::routed_experts also those of the tokens so far, of one
  // that runs and is not being computed again. Nothing happens for unknown ids.
  void abort(uint64_t id);
  // Bit i % 32 of word i / 32: token i may be the next one; empty: every token may. Nothing happens for
  // unknown ids.
  void set_mask(uint64_t id, std::vector<uint32_t> mask);
  // What tokens carry from now on.
  void set_version(int64_t version) { version_ = version; }
  // What runs goes on with the new weights; with park(preempt) it is computed again.
  void weights_changed() { scheduler_.weights_changed(); }

  const RolloutOptions& options() const { return options_; }
  // One step; false: there was nothing to do.
  bool step();
  std::vector<RolloutOutput> take_outputs() { return scheduler_.take_outputs(); }
  RolloutStats stats() const;
  // Gives the memory of keys and values and of the step's buffers back when nothing is running; false:
  // something is. preempt: nothing is then, and what was is computed again later. It comes back with the next
  // step.
  bool park(bool preempt);

 private:
  struct Use {
    int64_t row;  // of Uses::rows
    LogitsUse of;
    int64_t position;
    PlannedRun* run;        // of the sequence whose token is sampled; null: of a copy, or none is sampled
    int64_t followed = -1;  // of Uses::followed: its rows, which the token follows; -1: none
  };
  struct Uses {
    std::vector<Use> list;
    std::vector<int64_t> rows;           // of the step, ascending, whose logits are used
    std::vector<FollowedRows> followed;  // where the model's own layer drafts: all rows of the step
  };
  void check(const RolloutRequest& request) const;
  std::vector<ImageSpan> images_of(const RolloutRequest& request) const;
  // Of the step that is about to run.
  Uses uses_of(StepPlan& plan) const;
  // The token of use i from row rows[i] of `hidden`, the output of the last block, or with `ahead` that of
  // the layer for further tokens.
  Choices choices_of(const at::Tensor& hidden, const std::vector<int64_t>& rows,
                     const std::vector<LogitsUse>& uses, bool ahead);
  void choose(const at::Tensor& hidden, Uses& uses);
  // Whether the sequence goes on with the next row of its run, whose token has been guessed right.
  bool take(const Use& use, const Chosen& chosen, std::vector<FollowedRows>& followed);
  // What comes next, by the model's own layer (rollout_predictions.cc).
  void predict(const std::vector<FollowedRows>& followed);
  void copy_page(int64_t from, int64_t to);
  // False: it has ended.
  bool append(Sequence& sequence, const Chosen& chosen);
  void fail_non_finite(Sequence& sequence, const std::string& what);
  void fail_request(Sequence& sequence, std::string reason, bool non_finite);

  Decoder& decoder_;
  RolloutOptions options_;
  CacheSizes sizes_;
  KvCache cache_;
  StateCache states_;
  std::optional<RoutingPages> routing_;
  PagePool pool_;
  Scheduler scheduler_;
  StepRunner runner_;
  std::optional<TokenPredictor> predictor_;  // of a rollout that drafts by it
  int64_t version_ = 0;
  RolloutStats totals_;
};

}  // namespace troupe
