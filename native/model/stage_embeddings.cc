// Embeddings of a stage, whole or a part of the vocabulary.
#include <ATen/ATen.h>

#include "base/simulated.h"
#include "model/stage.h"

namespace troupe {

void Stage::embed(const at::Tensor& tokens, const at::Tensor& positions, const Exchange* exchange,
                  const char* phase, const at::Tensor& x) const {
  at::Tensor out = x;
  if (exchange == nullptr) {
    at::index_select_out(out, embed_, 0, tokens);
  } else {
    // Each row is zero on all ranks but the one that holds its token, so the sum is exact.
    const HeldTokens here = held(tokens);
    const at::Tensor part = at::zeros({tokens.size(0), x.size(1)}, x.options());
    part.index_copy_(0, here.places, embed_.index_select(0, here.rows));
    out.copy_(exchange->sum(part, {phase, "embeddings"}));
  }
  if (embedding_scale_ != 1) out.mul_(embedding_scale_);
  if (!pos_embed_.defined()) return;
  out.add_(pos_embed_.index_select(0, exchange != nullptr ? exchange->own(positions) : positions));
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

void Stage::accumulate_embeddings(const at::Tensor& dx, const at::Tensor& tokens, int64_t real_rows) const {
  const auto real = [&](const at::Tensor& rows) { return rows.narrow(0, 0, real_rows); };
  const at::Tensor all = exchange_ != nullptr ? exchange_->gather(dx, {"backward", "embeddings"}) : dx;
  const HeldTokens here = held(real(tokens));
  at::Tensor used = real(all).to(at::kFloat);
  if (here.places.defined()) used = used.index_select(0, here.places);
  ops::add_rows(embed_grad_, here.rows, embedding_scale_ == 1 ? used : used * embedding_scale_);
}

void Stage::accumulate_positions(const at::Tensor& dx, const StagePass& pass) const {
  const bool scattered = exchange_ != nullptr && exchange_->scattered();
  const at::Tensor positions = scattered ? exchange_->own(pass.rows.positions) : pass.rows.positions;
  const int64_t begin = scattered ? exchange_->first_row(pass.total_rows) : 0;
  const int64_t real = std::clamp<int64_t>(pass.real_rows - begin, 0, dx.size(0));
  ops::add_rows(pos_embed_grad_, positions.narrow(0, 0, real), dx.narrow(0, 0, real).to(at::kFloat));
}

}  // namespace troupe
