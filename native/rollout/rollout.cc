// Steps: plan, compute, choose, append.
#include "rollout/rollout.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/counting_allocator.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/range.h"
#include "base/upload.h"
#include "model/expert_routing.h"

namespace troupe {
namespace {

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

RolloutOptions checked(RolloutOptions options, const Decoder& decoder) {
  const ModelConfig& config = decoder.config();
  require(config.head == HeadKind::kLm, kBad,
          "[rollout] expected a language model but this one has a value head: generate with the actor");
  require(options.max_sequences >= 1, kBad, "[rollout] expected max_num_seqs >= 1 but got ",
          options.max_sequences);
  require(options.max_step_tokens >= 1, kBad, "[rollout] expected max_num_batched_tokens >= 1 but got ",
          options.max_step_tokens);
  require(options.quantization == ops::Quantization::kNone || !config.moe, kBad,
          "[rollout] the weights of mixtures of experts cannot be quantized: expected quantization null for "
          "this model");
  require(!options.routed_experts || config.moe, kBad,
          "[rollout] there are no routed experts to record: the model has no experts");
  require(
      !options.latent_cache || config.latent, kBad,
      "[rollout] latent_cache keeps the latents of multi-head latent attention, which this model does not "
      "have: expected false");
  require(!options.predicts() || config.prediction, kBad,
          "[rollout] the model's layers that predict further tokens are not there to draft with: expected an "
          "engine that holds them (mtp), or another method of speculative decoding");
  if (options.max_positions == 0) options.max_positions = config.max_positions;
  require(options.max_positions >= 1 && options.max_positions <= config.max_positions, kBad,
          "[rollout] expected max_model_len from 1 to the model's ", config.max_positions,
          " positions but got ", options.max_positions);
  return options;
}

// Stages of a pipeline must make the same plans: all have as many pages and slots as the one with most
// layers.
CacheSizes sizes_of(const RolloutOptions& options, const Decoder& decoder) {
  const ModelConfig config = rollout_config(options, decoder.config());
  return cache_sizes(options, with_layers(config, decoder.most_layers(options.predicts())), decoder.dtype());
}

// The model with the layers of this rank alone.
ModelConfig cached_part(const RolloutOptions& options, const Decoder& decoder) {
  std::vector<int64_t> own = decoder.own_layers();
  if (options.predicts() && decoder.predicts()) own.push_back(decoder.config().num_layers);
  return with_layers(rollout_config(options, decoder.config()), own);
}

SchedulerLimits limits_of(const RolloutOptions& options, const CacheSizes& sizes) {
  return {sizes.sequences,         options.max_step_tokens, options.max_positions,
          options.chunked_prefill, options.prefix_caching,  sizes.slots,
          options.drafts};
}

}  // namespace

Rollout::Rollout(Decoder& decoder, const RolloutOptions& options)
    : decoder_(decoder),
      options_(checked(options, decoder)),
      sizes_(sizes_of(options_, decoder)),
      cache_(cached_part(options_, decoder), decoder.dtype(), decoder.device(), sizes_.pages),
      states_(cached_part(options_, decoder), decoder.dtype(), decoder.device(), sizes_.slots),
      pool_(cache_.num_pages()),
      scheduler_(limits_of(options_, sizes_), pool_),
      runner_(decoder, rollout_config(options_, decoder.config()), cache_, states_) {
  if (options_.routed_experts) routing_.emplace(routing_shape(decoder.config()));
  if (options_.predicts()) predictor_.emplace(decoder, rollout_config(options_, decoder.config()), cache_);
}

void Rollout::copy_page(int64_t from, int64_t to) {
  cache_.copy_page(from, to);
  if (routing_) routing_->copy_page(from, to);
}

bool Rollout::park(bool preempt) {
  if (preempt) scheduler_.preempt_all();
  if (scheduler_.running() > 0) return false;
  pool_.clear_index();
  cache_.release_memory();
  states_.release_memory();
  runner_.release_memory();
  if (routing_) routing_->release_memory();
  return true;
}

bool Rollout::step() {
  const Range range("rollout_step");
  const at::NoGradGuard no_grad;
  StepPlan plan;
  struct Settled {
    Scheduler& scheduler;
    const StepPlan& plan;
    ~Settled() { scheduler.settle(plan); }
  } const settled{scheduler_, plan};
  Uses uses;
  at::Tensor hidden;
  try {
    plan = scheduler_.plan();
    for (const auto& [from, to] : plan.state_copies) states_.copy(from, to);
    if (plan.runs.empty()) return false;
    cache_.take_memory();
    states_.take_memory();
    for (const PlannedRun& run : plan.runs) {
      const Sequence& sequence = *run.sequence;
      if (sequence.tail >= 0)
        copy_page(sequence.tail, sequence.pages[static_cast<size_t>(sequence.computed / kPagePositions)]);
    }
    uses = uses_of(plan);
    hidden = runner_.run(plan, uses.rows, routing_ ? &*routing_ : nullptr, predictor_.has_value());
    for (const PlannedRun& run : plan.runs) {
      const auto full = static_cast<size_t>((run.sequence->computed + run.count) / kPagePositions);
      for (const Sequence* copy : run.copies) {
        if (copy->pages.size() > full) copy_page(run.sequence->pages[full], copy->pages[full]);
        states_.copy(run.sequence->slot, copy->slot);
      }
    }
    scheduler_.computed(plan);
  } catch (...) {
    // Sequences may count on pages that another one was to fill in this step, and states of some layers are
    // those behind it: all begin again, whoever is aborted now.
    scheduler_.drop();
    throw;
  }
  // What fails from here on leaves keys and values that are right, and sequences that are never planned
  // again: they are to be aborted.
  choose(hidden, uses);
  if (predictor_) predict(uses.followed);
  ++totals_.steps;
  totals_.computed_tokens += plan.rows;
  for (const PlannedRun& run : plan.runs) {
    totals_.drafts += run.drafted > 0 ? 1 : 0;
    totals_.drafted_tokens += run.drafted;
  }
  return true;
}

Rollout::Uses Rollout::uses_of(StepPlan& plan) const {
  Uses uses;
  const auto add = [&](int64_t row, const LogitsUse& of, int64_t position = 0, PlannedRun* run = nullptr,
                       int64_t followed = -1) {
    if (uses.rows.empty() || uses.rows.back() != row) uses.rows.push_back(row);
    uses.list.push_back({static_cast<int64_t>(uses.rows.size()) - 1, of, position, run, followed});
  };
  const auto follow = [&](const Sequence& sequence, const PlannedRun& run, int64_t row) -> int64_t {
    if (!predictor_) return -1;
    std::optional<FollowedRows> rows = followed_rows(sequence, run, row);
    if (!rows) return -1;
    uses.followed.push_back(std::move(*rows));
    return static_cast<int64_t>(uses.followed.size()) - 1;
  };
  int64_t row = 0;
  for (PlannedRun& run : plan.runs) {
    Sequence& sequence = *run.sequence;
    const int64_t first = sequence.computed, end = first + run.count;
    if (sequence.wants_prompt_log_probs()) {
      for (int64_t i = first; i < std::min(end, sequence.prompt_length() - 1); ++i)
        add(row + i - first, {&sequence, sequence.tokens[static_cast<size_t>(i + 1)]}, i + 1);
    }
    const int64_t own = follow(sequence, run, row);
    row += run.count;
    if (sequence.remaining() > run.count) continue;
    for (int64_t i = 0; i <= run.drafted; ++i)
      add(row - 1 - run.drafted + i, {&sequence, -1, i}, 0, &run, own);
    for (Sequence* copy : run.copies)
      add(row - 1, {copy, -1}, 0, nullptr, follow(*copy, run, row - run.count));
  }
  return uses;
}

Choices Rollout::choices_of(const at::Tensor& hidden, const std::vector<int64_t>& rows,
                            const std::vector<LogitsUse>& uses, bool ahead) {
  const ModelConfig& config = decoder_.config();
  const int64_t tile = decoder_.decode_row_tile();
  const int64_t row_bytes = config.vocab_size * static_cast<int64_t>(sizeof(float));
  const int64_t chunk = std::max<int64_t>(options_.logits_bytes / row_bytes / tile, 1) * tile;
  const AllocateFor head(MemoryPart::kHead);
  const auto logits_of = [&](const std::vector<int64_t>& which) {
    const at::Tensor index = at::zeros({round_up(static_cast<int64_t>(which.size()), tile)}, at::kLong);
    for (size_t i = 0; i < which.size(); ++i)
      index.data_ptr<int64_t>()[i] = rows[static_cast<size_t>(which[i])];
    const at::Tensor logits =
        at::empty({index.size(0), config.vocab_size}, hidden.options().dtype(at::kFloat));
    const at::Tensor x = hidden.index_select(0, upload(index, hidden.device()));
    if (ahead) {
      decoder_.prediction_logits(x, logits);
    } else {
      decoder_.logits(x, logits);
    }
    return logits;
  };
  Choices choices = choose_tokens(
      logits_of, chunk, {decoder_.vocabulary_parts(), config.final_softcap, config.logits_scaling}, uses);
  totals_.host_choices += choices.on_host;
  return choices;
}

void Rollout::choose(const at::Tensor& hidden, Uses& uses) {
  const Range range("choose_tokens");
  std::vector<LogitsUse> wanted;
  std::vector<int64_t> rows;
  for (const Use& use : uses.list) {
    wanted.push_back(use.of);
    rows.push_back(use.row);
  }
  const Choices choices = choices_of(hidden, rows, wanted, /*ahead=*/false);
  const Sequence* done = nullptr;  // perhaps gone; what follows of it in the list is of no use
  for (size_t i = 0; i < uses.list.size(); ++i) {
    const Use& use = uses.list[i];
    Sequence* sequence = use.of.sequence;
    if (sequence == done) continue;
    const Chosen& own = choices.chosen[i];
    if (use.of.target < 0) {
      if (!take(use, own, uses.followed)) done = sequence;
      continue;
    }
    if (!own.sampled.finite) {
      done = sequence;
      fail_non_finite(*sequence, "the log-prob of prompt token " + std::to_string(use.position));
      continue;
    }
    std::vector<float>& values = sequence->output.prompt_log_probs;
    values.resize(static_cast<size_t>(sequence->prompt_length()), std::numeric_limits<float>::quiet_NaN());
    values[static_cast<size_t>(use.position)] = own.sampled.log_prob;
  }
}

bool Rollout::take(const Use& use, const Chosen& chosen, std::vector<FollowedRows>& followed) {
  const auto at = static_cast<size_t>(use.of.ahead);
  const bool sampled = chosen.sampled.finite && !chosen.none_left;
  if (use.followed >= 0 && sampled) {
    FollowedRows& rows = followed[static_cast<size_t>(use.followed)];
    rows.next.push_back(chosen.sampled.token);
    rows.sampled = true;
  }
  bool right = false;
  if (sampled && use.run != nullptr && at < use.run->guess.tokens.size()) {
    right = use.run->guess.tokens[at] == chosen.sampled.token;
    scheduler_.guessed(use.run->guess, use.of.ahead, right);
  }
  if (!append(*use.of.sequence, chosen) || !right || use.of.ahead == use.run->drafted) return false;
  ++totals_.accepted_tokens;
  scheduler_.accept(*use.run);
  return true;
}

bool Rollout::append(Sequence& sequence, const Chosen& chosen) {
  const RequestSampling& s = sequence.request.sampling;
  if (chosen.none_left) {
    fail_request(sequence,
                 "[rollout] penalties, logit bias, bad words and mask leave no token of finite logits for "
                 "response token " +
                     std::to_string(sequence.response_length()) + ": give options that allow one",
                 false);
    return false;
  }
  if (!chosen.sampled.finite) {
    fail_non_finite(sequence, "response token " + std::to_string(sequence.response_length()));
    return false;
  }
  const int32_t token = chosen.sampled.token;
  RolloutOutput& output = sequence.output;
  sequence.tokens.push_back(token);
  sequence.has_mask = false;
  sequence.predicted.clear();
  if (s.penalises()) ++sequence.seen[token];
  output.tokens.push_back(token);
  output.log_probs.push_back(chosen.sampled.log_prob);
  if (s.top_log_probs > 0) output.top.push_back(chosen.top);
  output.version = version_;
  ++totals_.generated_tokens;
  if (sequence.response_length() == 1) totals_.cached_prompt_tokens += output.cached_tokens;
  const bool stops =
      std::find(s.stop_token_ids.begin(), s.stop_token_ids.end(), token) != s.stop_token_ids.end();
  if (!stops && sequence.response_length() < s.max_new_tokens) {
    scheduler_.report(sequence);
    return true;
  }
  if (routing_) output.routed_experts = routing_->read(sequence.pages, sequence.length() - 1);
  output.finish = stops ? Finish::kStop : Finish::kLength;
  scheduler_.finish(sequence);
  return false;
}

void Rollout::fail_non_finite(Sequence& sequence, const std::string& what) {
  fail_request(sequence,
               "[rollout] expected finite logits but " + what +
                   " has NaN or infinity: check the weights, or the learning rate of the last update",
               true);
}

void Rollout::fail_request(Sequence& sequence, std::string reason, bool non_finite) {
  sequence.output.error = std::move(reason);
  sequence.output.non_finite = non_finite;
  sequence.output.finish = Finish::kAbort;
  scheduler_.finish(sequence);
}

RolloutStats Rollout::stats() const {
  RolloutStats stats = totals_;
  stats.running = scheduler_.running();
  stats.waiting = scheduler_.waiting();
  stats.pages = pool_.size();
  stats.pages_held = pool_.held();
  stats.pages_indexed = pool_.indexed();
  stats.slots_held = scheduler_.slots().held();
  stats.snapshots = scheduler_.slots().snapshots();
  stats.cache_bytes = cache_.bytes() + states_.bytes();
  stats.preemptions = scheduler_.preemptions();
  stats.version = version_;
  return stats;
}

}  // namespace troupe
