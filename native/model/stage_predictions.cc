// Layers that predict further tokens, behind the last block of a stage.
#include <ATen/ATen.h>

#include "base/error.h"
#include "base/parallel.h"
#include "base/range.h"
#include "base/upload.h"
#include "model/stage.h"

namespace troupe {

namespace {

struct PredictionPass {
  RowContext rows;
  at::Tensor tokens, sources, predict_rows;
  PredictionSaved saved;
  at::Tensor d_normed;  // [T, H]
};

}  // namespace

at::Tensor Stage::predictions_backward(StagePass& pass) {
  const Range range("predictions");
  require(pass.predictions && pass.predictions->layers.size() == predictions_.size(), ErrorCode::kInternal,
          "[model] expected a task for each of ", predictions_.size(), " prediction layers");
  const PredictionTask& task = *pass.predictions;
  Lease weights = lease(prediction_groups_, "backward", Lease::Of::kBoth);
  const int64_t size = config_.hidden_size;
  const NormStats stats = NormStats::make(final_norm_, pass.outputs.size(0));
  at::Tensor hidden = norm_rows(final_norm_, pass.outputs, stats);
  std::vector<PredictionPass> passes(predictions_.size());
  for (size_t k = 0; k < predictions_.size(); ++k) {
    const PackedTokens& packed = task.layers[k].packed;
    PredictionPass& own = passes[k];
    const int64_t total = packed.tokens.size(0);
    own.rows = row_context(packed.positions, packed.segments, kRowTile);
    own.rows.exchange = exchange_;
    if (ep_ != nullptr) own.rows.experts = ExpertRows::of(*ep_, total, {"backward", "rows"});
    own.tokens = upload(packed.tokens, device_);
    own.sources = upload(task.layers[k].sources, device_);
    own.predict_rows = upload(packed.predict_rows, device_);
    const int64_t here = exchange_ != nullptr ? exchange_->own_rows(total) : total;
    const at::Tensor tokens = at::empty({here, size}, row_options());
    embed(own.tokens, own.rows.positions, exchange_, "backward", tokens);
    const at::Tensor before = at::zeros({total, size}, row_options());
    at::Tensor filled = before.narrow(0, 0, packed.real_rows);
    at::index_select_out(filled, hidden, 0, own.sources);
    at::Tensor y = predictions_[k].forward(tokens, exchange_ != nullptr ? exchange_->own(before) : before,
                                           own.rows, own.saved);
    if (exchange_ != nullptr) y = exchange_->gather(y, {"backward", "outputs"});
    hidden = predictions_[k].last_norm(y, own.saved);

    const int64_t predictions = own.predict_rows.size(0);
    own.d_normed = at::zeros_like(hidden);
    const at::Tensor outputs = at::zeros({round_up(predictions, kRowTile), size}, row_options());
    at::Tensor predicting = outputs.narrow(0, 0, predictions);
    at::index_select_out(predicting, hidden, 0, own.predict_rows);
    if (predictions == 0) continue;
    ops::add_rows(own.d_normed, own.predict_rows,
                  task.gradient(k, packed, outputs).narrow(0, 0, predictions));
  }
  at::Tensor further;  // the gradient by what the layer of this depth was given, all rows
  for (size_t k = predictions_.size(); k-- > 0;) {
    PredictionPass& own = passes[k];
    const PackedTokens& packed = task.layers[k].packed;
    if (further.defined()) own.d_normed.add_(further);
    const at::Tensor dy = predictions_[k].last_norm_backward(own.d_normed, own.saved);
    own.rows.phase = "backward";
    const PredictionLayer::InputGradients inputs =
        predictions_[k].backward(exchange_ != nullptr ? exchange_->own(dy) : dy, own.rows, own.saved);
    if (task.detach) continue;
    if (embed_grad_.defined()) accumulate_embeddings(inputs.tokens, own.tokens, packed.real_rows);
    const at::Tensor d_before =
        exchange_ != nullptr ? exchange_->gather(inputs.hidden, {"backward", "inputs"}) : inputs.hidden;
    const int64_t rows = k > 0 ? task.layers[k - 1].packed.tokens.size(0) : pass.total_rows;
    further = at::zeros({rows, size}, row_options());
    ops::add_rows(further, own.sources, d_before.narrow(0, 0, packed.real_rows));
    own = {};
  }
  weights.end();
  if (task.detach) return {};
  const at::Tensor d_outputs = norm_rows_backward(final_norm_, further, pass.outputs, stats);
  pass.outputs.reset();
  return d_outputs;
}

void Stage::predictions_without_rows() {
  if (!trains_predictions_) return;
  Lease weights = lease(prediction_groups_, "backward", Lease::Of::kBoth);
  std::vector<RowContext> rows(predictions_.size());
  std::vector<BlockSaved> saved(predictions_.size());
  for (size_t k = 0; k < predictions_.size(); ++k) {
    rows[k].row_tile = kRowTile;
    if (ep_ != nullptr) rows[k].experts = ExpertRows::of(*ep_, 0, {"backward", "rows"});
    predictions_[k].block().experts_without_rows(row_options(), rows[k], &saved[k]);
  }
  for (size_t k = predictions_.size(); k-- > 0;) {
    rows[k].phase = "backward";
    predictions_[k].block().experts_backward_without_rows(row_options(), rows[k], saved[k]);
  }
  weights.end();
}

}  // namespace troupe
