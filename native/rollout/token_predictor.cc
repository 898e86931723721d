// Rows of the layer for further tokens, and their way through it.
#include "rollout/token_predictor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/parallel.h"
#include "base/range.h"
#include "base/upload.h"
#include "rollout/step_layer.h"

namespace troupe {

namespace {

// Of this rank: behind those of the decoder's layers that have attention.
int64_t place_in_pages(const Decoder& decoder) {
  const std::vector<int64_t> layers = decoder.own_layers();
  return std::count_if(layers.begin(), layers.end(),
                       [&](int64_t layer) { return !decoder.config().is_linear_layer(layer); });
}

}  // namespace

std::optional<FollowedRows> followed_rows(const Sequence& sequence, const PlannedRun& run, int64_t row) {
  const int64_t first = run.sequence->computed, end = first + run.known();
  FollowedRows rows{
      .id = sequence.request.id, .row = row, .position = first, .pages = sequence.pages, .next = {}};
  if (&sequence != run.sequence) {
    // A copy has a page of its own where the last one is not full. What comes before is written by the run.
    const int64_t own = end / kPagePositions * kPagePositions;
    if (own == end) return std::nullopt;
    rows.position = std::max(first, own);
    rows.row += rows.position - first;
  }
  for (int64_t next = rows.position + 1; next <= std::min(end, sequence.length() - 1); ++next)
    rows.next.push_back(sequence.tokens[static_cast<size_t>(next)]);
  return rows;
}

TokenPredictor::TokenPredictor(Decoder& decoder, ModelConfig config, const KvCache& cache)
    : decoder_(decoder), config_(std::move(config)), cache_(cache), cached_(place_in_pages(decoder)) {}

void TokenPredictor::Rows::add(int64_t source, int32_t token, int64_t position) {
  sources.push_back(source);
  tokens.push_back(token);
  positions.push_back(static_cast<int32_t>(position));
}

at::Tensor TokenPredictor::follow(const std::vector<FollowedRows>& followed, const at::Tensor& hidden,
                                  const std::vector<size_t>& guessing) {
  Rows rows;
  std::vector<int64_t> wanted;
  auto guesses = guessing.begin();
  for (size_t i = 0; i < followed.size(); ++i) {
    const FollowedRows& own = followed[i];
    if (own.count() == 0) continue;
    rows.runs.push_back({static_cast<int64_t>(rows.tokens.size()), own.position, own.count(), &own.pages});
    for (int64_t at = 0; at < own.count(); ++at)
      rows.add(own.row + at, own.next[static_cast<size_t>(at)], own.position + at);
    if (guesses == guessing.end() || *guesses != i) continue;
    wanted.push_back(static_cast<int64_t>(rows.tokens.size()) - 1);
    ++guesses;
  }
  return compute(rows, hidden, /*again=*/false, std::move(wanted));
}

at::Tensor TokenPredictor::further(const std::vector<FollowedRows>& followed, const at::Tensor& before,
                                   const std::vector<GuessRow>& guesses, int64_t ahead) {
  Rows rows;
  std::vector<int64_t> wanted;
  for (const GuessRow& guess : guesses) {
    const FollowedRows& own = followed[guess.followed];
    const int64_t row = static_cast<int64_t>(rows.tokens.size());
    const int64_t position = own.position + own.count() - 1 + ahead;
    rows.runs.push_back({row, position, 1, &own.pages});
    rows.add(guess.row, guess.token, position);
    wanted.push_back(row);
  }
  return compute(rows, before, /*again=*/true, std::move(wanted));
}

at::Tensor TokenPredictor::compute(const Rows& rows, const at::Tensor& before, bool again,
                                   std::vector<int64_t> wanted) {
  const Range range("predict_tokens");
  const auto count = static_cast<int64_t>(rows.tokens.size());
  const int64_t padded = round_up(count, decoder_.decode_row_tile());
  // In a pipeline the other ranks wait for what comes of it.
  if (count == 0 || !decoder_.predicts()) {
    const int64_t rows_wanted = round_up(static_cast<int64_t>(wanted.size()), decoder_.decode_row_tile());
    return at::zeros({rows_wanted, before.size(1)}, before.options());
  }
  const WantedRows some(decoder_, std::move(wanted));
  const auto column = [&](const auto& values, at::ScalarType type) {
    const at::Tensor host = at::zeros({padded}, type);
    std::copy(values.begin(), values.end(),
              static_cast<typename std::decay_t<decltype(values)>::value_type*>(host.mutable_data_ptr()));
    return upload(host, decoder_.device());
  };
  const int64_t layer = config_.num_layers;
  const at::Tensor tokens = column(rows.tokens, at::kInt), positions = column(rows.positions, at::kInt);
  const at::Tensor x = before.index_select(0, column(rows.sources, at::kLong));
  decoder_.begin_step(*std::max_element(rows.positions.begin(), rows.positions.end()) + 1);
  decoder_.prediction_inputs(tokens, positions, x, again, x);
  // What attention leaves out is computed, too: zeros keep it finite.
  const at::Tensor qkv = at::zeros({padded, config_.mixer_inputs(layer)}, x.options());
  const at::Tensor attention = at::zeros({padded, config_.mixer_outputs(layer)}, x.options());
  decoder_.attention_inputs(layer, x, positions, qkv);
  const StepRows step(rows.runs, cache_, /*apart=*/false);
  const std::vector<RowRun> parts = step.parts_with(some.rows());
  paged_attention(attention_spec(config_, decoder_, layer), cache_, cached_, step, qkv, attention, &parts);
  return some.output(decoder_, layer, x, attention, config_.attention_gate ? qkv : at::Tensor());
}

}  // namespace troupe
