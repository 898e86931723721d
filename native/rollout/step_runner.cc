// Buffers of a step, and its way through the layers.
#include "rollout/step_runner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/parallel.h"
#include "base/range.h"
#include "base/upload.h"
#include "rollout/step_images.h"
#include "rollout/step_layer.h"

namespace troupe {

namespace {

// The runs of a step, as its layers take them.
struct StepParts {
  std::vector<RowRun> runs;
  std::vector<ops::StateRun> state_runs;
  std::vector<StateSnapshot> snapshots;
  int64_t positions = 0;  // all rows are at positions below
};

// tokens, positions [padded]: filled; padding rows are token 0 at position 0.
StepParts parts_of(const StepPlan& plan, int64_t padded, int32_t* tokens, int32_t* positions,
                   StepImages& images) {
  StepParts parts;
  int64_t row = 0;
  for (const PlannedRun& run : plan.runs) {
    const Sequence& sequence = *run.sequence;
    parts.runs.push_back({row, sequence.computed, run.count, &sequence.pages});
    const size_t own = parts.state_runs.size();
    for (const auto& [count, slot] : run.snapshots) parts.snapshots.push_back({own, count, slot});
    // The state behind the last row goes into the slot of the sequence anyway.
    for (int64_t i = 0; i + 1 < static_cast<int64_t>(run.states.size()); ++i)
      parts.snapshots.push_back({own, run.known() + i, run.states[static_cast<size_t>(i)]});
    parts.state_runs.push_back({row, run.count, sequence.slot, sequence.computed == 0});
    const int64_t first = row;
    for (int64_t i = 0; i < run.count; ++i, ++row) {
      tokens[row] = i < run.known() ? sequence.tokens[static_cast<size_t>(sequence.computed + i)]
                                    : run.guess.tokens[static_cast<size_t>(i - run.known())];
      positions[row] = static_cast<int32_t>(sequence.computed + i);
    }
    if (!sequence.images.empty()) images.add(run, first, positions + first);
    parts.positions = std::max(parts.positions, sequence.computed + run.count);
  }
  std::fill(tokens + row, tokens + padded, 0);
  std::fill(positions + row, positions + padded, 0);
  return parts;
}

}  // namespace

StepRunner::StepRunner(Decoder& decoder, ModelConfig config, const KvCache& cache, const StateCache& states)
    : decoder_(decoder), config_(std::move(config)), cache_(cache), states_(states) {
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    inputs_ = std::max(inputs_, config_.mixer_inputs(layer));
    outputs_ = std::max(outputs_, config_.mixer_outputs(layer));
  }
}

void StepRunner::reserve(int64_t rows) {
  if (x_.defined() && x_.size(0) >= rows) return;
  const auto compute = at::TensorOptions().dtype(decoder_.dtype()).device(decoder_.device());
  // Padding rows are computed too: zeros keep them finite.
  x_ = at::zeros({rows, config_.hidden_size}, compute);
  qkv_ = at::zeros({rows * inputs_}, compute);
  attention_ = at::zeros({rows * outputs_}, compute);
  tokens_ = at::zeros({rows}, at::TensorOptions(at::kInt));
  positions_ = at::zeros({rows}, at::TensorOptions(at::kInt));
}

at::Tensor StepRunner::run(const StepPlan& plan, const std::vector<int64_t>& wanted, RoutingPages* routing,
                           bool whole) {
  const int64_t padded = round_up(plan.rows, decoder_.decode_row_tile());
  reserve(padded);
  StepImages images(decoder_);
  StepParts parts =
      parts_of(plan, padded, tokens_.data_ptr<int32_t>(), positions_.data_ptr<int32_t>(), images);
  StepRows step(std::move(parts.runs), cache_, plan.apart);
  at::Tensor x = x_.narrow(0, 0, padded);
  decoder_.begin_step(parts.positions, images.rotary(positions_.narrow(0, 0, padded)));
  at::Tensor positions = upload(positions_.narrow(0, 0, padded), decoder_.device());
  const at::Tensor tokens = upload(tokens_.narrow(0, 0, padded), decoder_.device());
  decoder_.embed(tokens, positions, x);
  at::Tensor inputs = decoder_.layer_inputs(tokens, x);
  const ImageRows image_rows = images.rows();
  image_rows.place(x);
  const at::Tensor choices = routing != nullptr ? routing->rows(padded, decoder_.device()) : at::Tensor();
  decoder_.record_experts(choices);
  std::optional<WantedRows> some;  // not all
  if (static_cast<int64_t>(wanted.size()) != plan.rows) some.emplace(decoder_, wanted);
  const std::vector<int64_t> own = decoder_.own_layers();
  size_t next = 0;                                                           // of them
  int64_t kept = 0;                                                          // of those with states
  std::vector<int64_t> cached(static_cast<size_t>(config_.num_layers), -1);  // places in the cache of pages
  int64_t in_pages = 0;
  const int64_t last_keys = config_.num_layers - config_.shared_kv_layers - 1;
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const Range range("layer", layer);
    decoder_.enter_layer(layer, x);
    if (next == own.size() || own[next] != layer) continue;
    ++next;
    const auto rows_of = [&](const at::Tensor& flat, int64_t columns) {
      return flat.narrow(0, 0, x.size(0) * columns).view({x.size(0), columns});
    };
    const at::Tensor qkv = rows_of(qkv_, config_.mixer_inputs(layer));
    const at::Tensor attention = rows_of(attention_, config_.mixer_outputs(layer));
    const bool partial = some && !whole && !config_.moe && layer == last_keys && !image_rows.adds(layer);
    const LinearAttention* const linear = decoder_.linear_attention(layer);
    decoder_.attention_inputs(layer, x, positions, qkv);
    if (linear != nullptr) {
      linear->step(qkv, parts.state_runs, parts.snapshots, states_.layer(kept++), attention);
    } else {
      std::vector<RowRun> attending;
      if (partial) attending = step.parts_with(wanted);
      // A layer that shares keys finds them in qkv, too, and stores them where they are.
      int64_t& place = cached[static_cast<size_t>(layer)];
      place = config_.shares_keys(layer) ? cached[static_cast<size_t>(config_.keys_of(layer))] : in_pages++;
      paged_attention(attention_spec(config_, decoder_, layer), cache_, place, step, qkv, attention,
                      partial ? &attending : nullptr);
    }
    const bool gates = linear == nullptr && config_.attention_gate;
    if (partial) {
      x = some->output(decoder_, layer, x, attention, gates ? qkv : at::Tensor(), inputs);
      if (wanted.empty() || layer + 1 == config_.num_layers) return x;
      // Nothing comes of the other rows any more: the layers behind keep no keys of their own.
      decoder_.keep_rows(some->index());
      positions = some->of(positions);
      if (inputs.defined()) inputs = some->of(inputs);
      step = step.only(wanted, cache_);
      some.reset();
      continue;
    }
    decoder_.block_output(layer, x, gates ? decoder_.gate_heads(layer, attention, qkv) : attention, inputs,
                          x);
    image_rows.add(layer, x);
  }
  if (routing != nullptr) routing->store(step.slots(), choices);
  decoder_.record_experts({});
  rows_ = x;
  return some ? some->of(x) : x;
}

}  // namespace troupe
