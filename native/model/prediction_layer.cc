// Two inputs joined, a block, and a norm; forward and backward.
#include "model/prediction_layer.h"

#include <ATen/ATen.h>

#include <string>

#include "base/parallel.h"

namespace troupe {

namespace {

std::string name_of(int64_t layer, const char* part) {
  return "layers." + std::to_string(layer) + ".predict." + part;
}

}  // namespace

PredictionLayer::PredictionLayer(const ParameterStore& store, const ModelConfig& config, int64_t layer,
                                 const DecoderPart& part)
    : block_(store, config, layer, part),
      token_norm_(store, config, name_of(layer, "token_norm")),
      hidden_norm_(store, config, name_of(layer, "hidden_norm")),
      norm_(store, config, name_of(layer, "norm")),
      in_(store, name_of(layer, "in")),
      hidden_first_(config.prediction->hidden_first) {}

at::Tensor PredictionLayer::joined(const at::Tensor& tokens, const at::Tensor& hidden,
                                   const NormStats& token_stats, const NormStats& hidden_stats) const {
  const at::Tensor token_rows = norm_rows(token_norm_, tokens, token_stats);
  const at::Tensor hidden_rows = norm_rows(hidden_norm_, hidden, hidden_stats);
  return hidden_first_ ? at::cat({hidden_rows, token_rows}, 1) : at::cat({token_rows, hidden_rows}, 1);
}

void PredictionLayer::block_inputs(const at::Tensor& tokens, const at::Tensor& hidden, int64_t row_tile,
                                   const Linear::Packed& weight, const at::Tensor& x) const {
  const at::Tensor rows = joined(tokens, hidden, {}, {});
  for_each_row_tile(
      x.size(0), row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        in_.forward(rows.narrow(0, begin, end - begin), x.narrow(0, begin, end - begin), weight);
      },
      weight.packed());
}

at::Tensor PredictionLayer::forward(const at::Tensor& tokens, const at::Tensor& hidden,
                                    const RowContext& rows, PredictionSaved& saved) const {
  const int64_t count = hidden.size(0);
  saved.tokens = tokens;
  saved.hidden = hidden;
  saved.token_norm = NormStats::make(token_norm_, count);
  saved.hidden_norm = NormStats::make(hidden_norm_, count);
  saved.joined = joined(tokens, hidden, saved.token_norm, saved.hidden_norm);
  const at::Tensor x = at::empty_like(hidden);
  const Linear::Packed weight = in_.pack_forward();
  for_each_row_tile(count, rows.row_tile, x.device(), [&](int64_t begin, int64_t end) {
    in_.forward(saved.joined.narrow(0, begin, end - begin), x.narrow(0, begin, end - begin), weight);
  });
  return block_.forward(x, rows, &saved.block);
}

at::Tensor PredictionLayer::last_norm(const at::Tensor& y, PredictionSaved& saved) const {
  saved.output = y;
  saved.norm = NormStats::make(norm_, y.size(0));
  return norm_rows(norm_, y, saved.norm);
}

at::Tensor PredictionLayer::last_norm_backward(const at::Tensor& d_normed,
                                               const PredictionSaved& saved) const {
  return norm_rows_backward(norm_, d_normed, saved.output, saved.norm);
}

PredictionLayer::InputGradients PredictionLayer::backward(const at::Tensor& dy, const RowContext& rows,
                                                          PredictionSaved& saved) const {
  const at::Tensor dx = block_.backward(dy, rows, saved.block);
  const at::Tensor d_joined = at::empty_like(saved.joined);
  const Linear::Packed weight = in_.pack_backward();
  for_each_row_tile(dx.size(0), rows.row_tile, dx.device(), [&](int64_t begin, int64_t end) {
    in_.backward_input(dx.narrow(0, begin, end - begin), d_joined.narrow(0, begin, end - begin), weight);
  });
  in_.accumulate_grad(dx, saved.joined);
  const int64_t size = dx.size(1);
  const auto columns = [&](bool first) { return d_joined.narrow(1, first ? 0 : size, size).contiguous(); };
  const at::Tensor tokens =
      norm_rows_backward(token_norm_, columns(!hidden_first_), saved.tokens, saved.token_norm);
  const at::Tensor hidden =
      norm_rows_backward(hidden_norm_, columns(hidden_first_), saved.hidden, saved.hidden_norm);
  saved = {};
  return {tokens, hidden};
}

}  // namespace troupe
