// Embeddings of a stage, whole or a part of the vocabulary.
#include <ATen/ATen.h>

#include "base/simulated.h"
#include "model/stage.h"

namespace troupe {

void Stage::look_up(const at::Tensor& table, const at::Tensor& tokens, const Exchange* exchange,
                    const CollectiveLabel& label, const at::Tensor& out) const {
  if (exchange == nullptr) {
    at::Tensor rows = out;
    at::index_select_out(rows, table, 0, tokens);
    return;
  }
  // Each row is zero on all ranks but the one that holds its token, so the sum is exact.
  const HeldTokens here = held(tokens);
  const at::Tensor part = at::zeros({tokens.size(0), out.size(1)}, out.options());
  part.index_copy_(0, here.places, table.index_select(0, here.rows));
  out.copy_(exchange->sum(part, label));
}

void Stage::embed(const at::Tensor& tokens, const at::Tensor& positions, const Exchange* exchange,
                  const char* phase, const at::Tensor& x) const {
  look_up(embed_, tokens, exchange, {phase, "embeddings"}, x);
  if (embedding_scale_ != 1) at::Tensor(x).mul_(embedding_scale_);
  if (!pos_embed_.defined()) return;
  at::Tensor(x).add_(pos_embed_.index_select(0, exchange != nullptr ? exchange->own(positions) : positions));
}

at::Tensor Stage::layer_inputs(const at::Tensor& tokens, const at::Tensor& x, const Exchange* exchange,
                               const char* phase, int64_t row_tile, const Linear::Packed& packed,
                               PerLayerSaved* saved) const {
  if (!per_layer_) return {};
  const at::Tensor words = at::empty({x.size(0), per_layer_->table().size(1)}, x.options());
  look_up(per_layer_->table(), tokens, exchange, {phase, "per-layer embeddings"}, words);
  return per_layer_->forward(words, x, row_tile, packed, saved);
}

Stage::HeldTokens Stage::held(const at::Tensor& tokens) const {
  if (exchange_ == nullptr) return {{}, tokens};
  const at::Tensor rows = tokens - first_token_;
  if (simulated(tokens)) {  // a share of them, as if every word came as often as any other
    const int64_t share = std::min<int64_t>(tokens.size(0), tokens.size(0) / exchange_->size() + 1);
    return {at::empty({share}, tokens.options().dtype(at::kLong)), rows.narrow(0, 0, share)};
  }
  const at::Tensor places = at::logical_and(rows.ge(0), rows.lt(embed_.size(0))).nonzero().view({-1});
  return {places, rows.index_select(0, places)};
}

void Stage::accumulate_words(const at::Tensor& gradient, const at::Tensor& d, const at::Tensor& tokens,
                             int64_t real_rows, double scale, const CollectiveLabel& label) const {
  const auto real = [&](const at::Tensor& rows) { return rows.narrow(0, 0, real_rows); };
  const at::Tensor all = exchange_ != nullptr ? exchange_->gather(d, label) : d;
  const HeldTokens here = held(real(tokens));
  at::Tensor used = real(all).to(at::kFloat);
  if (here.places.defined()) used = used.index_select(0, here.places);
  ops::add_rows(gradient, here.rows, scale == 1 ? used : used * scale);
}

void Stage::accumulate_embeddings(const at::Tensor& dx, const at::Tensor& tokens, int64_t real_rows) const {
  accumulate_words(embed_grad_, dx, tokens, real_rows, embedding_scale_, {"backward", "embeddings"});
}

void Stage::per_layer_backward(const at::Tensor& dx, const StagePass& pass) const {
  const at::Tensor& d = pass.rows.layer_input_gradient;
  per_layer_->backward(d, pass.per_layer, dx);
  // d has the factor of the table's rows by now.
  accumulate_words(per_layer_->table_grad(), d, pass.tokens, pass.real_rows, 1,
                   {"backward", "per-layer embeddings"});
}

void Stage::accumulate_positions(const at::Tensor& dx, const StagePass& pass) const {
  const bool scattered = exchange_ != nullptr && exchange_->scattered();
  const at::Tensor positions = scattered ? exchange_->own(pass.rows.positions) : pass.rows.positions;
  const int64_t begin = scattered ? exchange_->first_row(pass.total_rows) : 0;
  const int64_t real = std::clamp<int64_t>(pass.real_rows - begin, 0, dx.size(0));
  ops::add_rows(pos_embed_grad_, positions.narrow(0, 0, real), dx.narrow(0, 0, real).to(at::kFloat));
}

}  // namespace troupe
