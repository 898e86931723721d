// Buffers of a step, and its way through the layers.
#include "rollout/step_runner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/parallel.h"
#include "base/range.h"
#include "base/upload.h"
#include "rollout/step_images.h"

namespace troupe {
namespace {

// The parts of `runs` that have these rows.
std::vector<RowRun> parts_with(const std::vector<RowRun>& runs, const std::vector<int64_t>& rows) {
  std::vector<RowRun> parts;
  auto run = runs.begin();
  for (const int64_t row : rows) {
    while (row >= run->row + run->count) ++run;
    if (!parts.empty() && parts.back().pages == run->pages && parts.back().row + parts.back().count == row) {
      ++parts.back().count;
    } else {
      parts.push_back({row, run->position + row - run->row, 1, run->pages});
    }
  }
  return parts;
}

}  // namespace

StepRunner::StepRunner(Decoder& decoder, const KvCache& cache, const StateCache& states)
    : decoder_(decoder), cache_(cache), states_(states) {
  const ModelConfig& config = decoder.config();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    inputs_ = std::max(inputs_, config.mixer_inputs(layer));
    outputs_ = std::max(outputs_, config.mixer_outputs(layer));
  }
}

void StepRunner::reserve(int64_t rows) {
  if (x_.defined() && x_.size(0) >= rows) return;
  const ModelConfig& config = decoder_.config();
  const auto compute = at::TensorOptions().dtype(decoder_.dtype()).device(decoder_.device());
  // Padding rows are computed too: zeros keep them finite.
  x_ = at::zeros({rows, config.hidden_size}, compute);
  qkv_ = at::zeros({rows * inputs_}, compute);
  attention_ = at::zeros({rows * outputs_}, compute);
  tokens_ = at::zeros({rows}, at::TensorOptions(at::kInt));
  positions_ = at::zeros({rows}, at::TensorOptions(at::kInt));
}

at::Tensor StepRunner::run(const StepPlan& plan, const std::vector<int64_t>& wanted, RoutingPages* routing) {
  const ModelConfig& config = decoder_.config();
  const int64_t padded = round_up(plan.rows, decoder_.decode_row_tile());
  reserve(padded);
  int32_t* tokens = tokens_.data_ptr<int32_t>();
  int32_t* positions = positions_.data_ptr<int32_t>();
  std::vector<RowRun> runs;
  std::vector<ops::StateRun> state_runs;
  std::vector<StateSnapshot> snapshots;
  StepImages images(decoder_);
  int64_t row = 0, last = 0;
  for (const PlannedRun& run : plan.runs) {
    const Sequence& sequence = *run.sequence;
    runs.push_back({row, sequence.computed, run.count, &sequence.pages});
    for (const auto& [count, slot] : run.snapshots) snapshots.push_back({state_runs.size(), count, slot});
    state_runs.push_back({row, run.count, sequence.slot, sequence.computed == 0});
    const int64_t first = row;
    for (int64_t i = 0; i < run.count; ++i, ++row) {
      tokens[row] = i < run.known() ? sequence.tokens[static_cast<size_t>(sequence.computed + i)]
                                    : run.guess.tokens[static_cast<size_t>(i - run.known())];
      positions[row] = static_cast<int32_t>(sequence.computed + i);
    }
    if (!sequence.images.empty()) images.add(run, first, positions + first);
    last = std::max(last, sequence.computed + run.count - 1);
  }
  std::fill(tokens + row, tokens + padded, 0);
  std::fill(positions + row, positions + padded, 0);
  const StepRows step(std::move(runs), cache_, plan.apart);
  const at::Tensor x = x_.narrow(0, 0, padded);
  const auto rows_of = [&](const at::Tensor& flat, int64_t columns) {
    return flat.narrow(0, 0, padded * columns).view({padded, columns});
  };
  decoder_.begin_step(last + 1, images.rotary(positions_.narrow(0, 0, padded)));
  const at::Tensor at_positions = upload(positions_.narrow(0, 0, padded), decoder_.device());
  decoder_.embed(upload(tokens_.narrow(0, 0, padded), decoder_.device()), at_positions, x);
  const ImageRows image_rows = images.rows();
  image_rows.place(x);
  ops::AttentionSpec spec{.num_heads = config.num_heads,
                          .num_kv_heads = config.num_kv_heads,
                          .head_dim = config.head_dim,
                          .scale = config.attention_scale,
                          .softcap = config.attention_softcap};
  const at::Tensor choices = routing != nullptr ? routing->rows(padded, decoder_.device()) : at::Tensor();
  decoder_.record_experts(choices);
  const bool all = static_cast<int64_t>(wanted.size()) == plan.rows;
  at::Tensor chosen, output;  // of the rows, and those of them that are wanted
  if (!all) {
    chosen =
        at::zeros({round_up(static_cast<int64_t>(wanted.size()), decoder_.decode_row_tile())}, at::kLong);
    std::copy(wanted.begin(), wanted.end(), chosen.data_ptr<int64_t>());
    chosen = upload(chosen, decoder_.device());
  }
  const std::vector<int64_t> own = decoder_.own_layers();
  int64_t cached = 0, kept = 0;  // places of the next of them in the caches of pages and of states
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const Range range("layer", layer);
    decoder_.enter_layer(layer, x);
    const auto next = static_cast<size_t>(cached + kept);
    if (next == own.size() || own[next] != layer) continue;
    const at::Tensor qkv = rows_of(qkv_, config.mixer_inputs(layer));
    const at::Tensor attention = rows_of(attention_, config.mixer_outputs(layer));
    const bool partial = !all && !config.moe && layer + 1 == config.num_layers && !image_rows.adds(layer);
    if (const GatedDeltaNet* delta = decoder_.delta_net(layer)) {
      decoder_.attention_inputs(layer, x, at_positions, qkv);
      delta->step(qkv, state_runs, snapshots, states_.layer(kept++), attention);
      if (!partial) {
        decoder_.block_output(layer, x, attention, x);
        image_rows.add(layer, x);
        continue;
      }
      output = x.index_select(0, chosen);
      if (!wanted.empty()) decoder_.block_output(layer, output, attention.index_select(0, chosen), output);
      continue;
    }
    spec.window = config.sliding_window(layer);
    spec.sinks = decoder_.attention_sinks(layer);
    decoder_.attention_inputs(layer, x, at_positions, qkv);
    if (partial) {
      const std::vector<RowRun> parts = parts_with(step.runs(), wanted);
      paged_attention(spec, cache_, cached++, step, qkv, attention, &parts);
      output = x.index_select(0, chosen);
      if (!wanted.empty()) {
        const at::Tensor attn = attention.index_select(0, chosen);
        const at::Tensor gated =
            config.attention_gate ? decoder_.gate_heads(layer, attn, qkv.index_select(0, chosen)) : attn;
        decoder_.block_output(layer, output, gated, output);
      }
      continue;
    }
    paged_attention(spec, cache_, cached++, step, qkv, attention);
    decoder_.block_output(layer, x, decoder_.gate_heads(layer, attention, qkv), x);
    image_rows.add(layer, x);
  }
  if (routing != nullptr) routing->store(step.slots(), choices);
  decoder_.record_experts({});
  if (output.defined()) return output;
  return all ? x : x.index_select(0, chosen);
}

}  // namespace troupe
