// What a decoder layer makes of its input for attention: norm, projection, norms of q and k, rotary.
#include <ATen/ATen.h>

#include "base/parallel.h"
#include "base/range.h"
#include "model/block.h"

namespace troupe {

namespace {

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.defined() ? t.narrow(0, begin, end - begin) : t;
}

// Of sums by row [2, T].
at::Tensor columns_of(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.narrow(1, begin, end - begin);
}

}  // namespace

NormStats Block::save_inputs(const at::Tensor& x, const at::Tensor& qkv, BlockSaved* saved) const {
  if (saved == nullptr) return {};
  saved->projection = qkv_->make_saved(qkv.size(0), qkv.options());
  if (rotary_.qk_norm) {
    saved->qkv_pre = at::empty_like(qkv);
    saved->qk_rstd =
        at::empty({qkv.size(0), rotary_.num_heads + rotary_.num_kv_heads}, qkv.options().dtype(at::kFloat));
  }
  if (whole_qk_norm_) {
    saved->qkv_pre = at::empty_like(qkv);
    saved->qk_squares = qk_sums(qkv);
  }
  if (value_norm_) saved->v_rstd = value_norm_->make_rstd(qkv.size(0));
  return saved->attn_norm = NormStats::make(attn_norm_, x.size(0));
}

at::Tensor Block::qk_sums(const at::Tensor& qkv) const {
  return whole_qk_norm_ ? at::empty({2, qkv.size(0)}, qkv.options().dtype(at::kFloat)) : at::Tensor();
}

void Block::project_tile(const RowContext& rows, const at::Tensor& normed, int64_t begin, int64_t end,
                         const at::Tensor& qkv, const at::Tensor& squares, BlockSaved* saved,
                         const QkvProjection::Packed& qkv_weight) const {
  const at::Tensor out = rows_of(qkv, begin, end);
  if (rows.latents != nullptr) return qkv_->forward_latents(normed, out, qkv_weight, *rows.latents);
  qkv_->forward(normed, out, qkv_weight,
                saved != nullptr ? saved->projection.rows(begin, end - begin) : QkvSaved());
  if (saved != nullptr && saved->qkv_pre.defined()) rows_of(saved->qkv_pre, begin, end).copy_(out);
  if (whole_qk_norm_) whole_qk_norm_->squares(out, columns_of(squares, begin, end));
}

void Block::turn_tile(const RowContext& rows, int64_t begin, int64_t end, const at::Tensor& qkv,
                      const at::Tensor& squares, BlockSaved* saved) const {
  if (linear_) return;
  const at::Tensor out = rows_of(qkv, begin, end);
  if (whole_qk_norm_) whole_qk_norm_->forward(out, columns_of(squares, begin, end));
  if (value_norm_)
    value_norm_->forward(out, saved != nullptr ? rows_of(saved->v_rstd, begin, end) : at::Tensor());
  if (takes_keys_) keys_of(out).copy_(rows_of(shared_of(rows.shared_keys->of), begin, end));
  const bool latents = rows.latents != nullptr;
  ops::qk_norm_rotary_forward(latents ? latent_rotary_ : rotary_, latents ? out : heads_of(out),
                              rows_of(rows.positions, begin, end), turns(rows).cos, turns(rows).sin, q_norm_,
                              k_norm_, saved != nullptr ? rows_of(saved->qk_rstd, begin, end) : at::Tensor());
}

void Block::attention_inputs(const at::Tensor& x, const RowContext& rows, const at::Tensor& qkv,
                             BlockSaved* saved, const QkvProjection::Packed& qkv_weight) const {
  const Range range("attention_inputs");
  if (rows.exchange != nullptr) {
    exchange_attention_inputs(x, rows, qkv, saved, qkv_weight);
  } else {
    own_attention_inputs(x, rows, qkv, saved, qkv_weight);
  }
  // A copy also of one row: the caller may use qkv for the next layer.
  if (gives_keys_) shared_of(rows.shared_keys->of) = keys_of(qkv).clone(at::MemoryFormat::Contiguous);
}

void Block::own_attention_inputs(const at::Tensor& x, const RowContext& rows, const at::Tensor& qkv,
                                 BlockSaved* saved, const QkvProjection::Packed& qkv_weight) const {
  const NormStats stats = save_inputs(x, qkv, saved);
  const at::Tensor squares = saved != nullptr ? saved->qk_squares : qk_sums(qkv);
  for_each_row_tile(
      x.size(0), rows.row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        const at::Tensor room =
            attn_norm_.defined() ? at::empty({end - begin, x.size(1)}, x.options()) : at::Tensor();
        const at::Tensor normed =
            normed_rows(attn_norm_, rows_of(x, begin, end), room, stats.rows(begin, end - begin));
        project_tile(rows, normed, begin, end, qkv, squares, saved, qkv_weight);
        turn_tile(rows, begin, end, qkv, squares, saved);
      },
      all_packed(qkv_weight));
}

at::Tensor Block::make_qk_parts(const at::Tensor& dqkv, int64_t row_tile) const {
  if (!rotary_.qk_norm && !whole_qk_norm_) return {};
  const int64_t tiles = on_cpu_threads(dqkv.device()) ? (dqkv.size(0) + row_tile - 1) / row_tile : 1;
  const auto options = dqkv.options().dtype(at::kFloat);
  if (whole_qk_norm_) return at::zeros({tiles, whole_qk_norm_->columns()}, options);
  return at::zeros({2, tiles, rotary_.head_dim}, options);
}

void Block::rotary_backward_tile(const at::Tensor& dqkv, const RowContext& rows, int64_t begin, int64_t end,
                                 const BlockSaved& saved, const at::Tensor& qk_parts,
                                 const at::Tensor& products) const {
  if (linear_) return;
  const int64_t tile = begin / rows.row_tile;
  const auto part = [&](int64_t i) { return rotary_.qk_norm ? qk_parts[i].select(0, tile) : at::Tensor(); };
  ops::qk_norm_rotary_backward(rotary_, heads_of(rows_of(dqkv, begin, end)),
                               heads_of(rows_of(saved.qkv_pre, begin, end)),
                               rows_of(rows.positions, begin, end), turns(rows).cos, turns(rows).sin, q_norm_,
                               k_norm_, rows_of(saved.qk_rstd, begin, end), part(0), part(1));
  if (value_norm_)
    value_norm_->backward(rows_of(dqkv, begin, end), rows_of(saved.qkv_pre, begin, end),
                          rows_of(saved.v_rstd, begin, end));
  if (whole_qk_norm_)
    whole_qk_norm_->products(rows_of(dqkv, begin, end), rows_of(saved.qkv_pre, begin, end),
                             columns_of(products, begin, end));
}

void Block::whole_norm_backward_tile(const at::Tensor& dqkv, const RowContext& rows, int64_t begin,
                                     int64_t end, const BlockSaved& saved, const at::Tensor& qk_parts,
                                     const at::Tensor& products) const {
  if (!whole_qk_norm_) return;
  whole_qk_norm_->backward(rows_of(dqkv, begin, end), rows_of(saved.qkv_pre, begin, end),
                           columns_of(saved.qk_squares, begin, end), columns_of(products, begin, end),
                           qk_parts.select(0, begin / rows.row_tile));
}

void Block::finish_qk_norms(const at::Tensor& qk_parts) const {
  if (whole_qk_norm_) return whole_qk_norm_->accumulate(qk_parts.sum(0));
  if (!q_norm_grad_.defined()) return;
  q_norm_grad_.add_(qk_parts[0].sum(0));
  if (k_norm_grad_.defined()) k_norm_grad_.add_(qk_parts[1].sum(0));
}

void Block::backward_attention_inputs(const at::Tensor& dqkv, const RowContext& rows, const BlockSaved& saved,
                                      const at::Tensor& dx) const {
  const Range range("attention_inputs backward");
  if (rows.exchange != nullptr) return exchange_backward_attention_inputs(dqkv, rows, saved, dx);
  const int64_t total = dqkv.size(0);
  const at::Tensor normed = attn_norm_.defined() ? at::empty_like(saved.x) : saved.x;
  const at::Tensor products = qk_sums(dqkv);
  const auto projection = qkv_->backward(saved.projection, dqkv.size(0), rows.row_tile);
  NormGradient attn_norm(attn_norm_, total, rows.row_tile);
  const at::Tensor qk_parts = make_qk_parts(dqkv, rows.row_tile);
  for_each_row_tile(total, rows.row_tile, dqkv.device(), [&](int64_t begin, int64_t end) {
    rotary_backward_tile(dqkv, rows, begin, end, saved, qk_parts, products);
    whole_norm_backward_tile(dqkv, rows, begin, end, saved, qk_parts, products);
    const at::Tensor x = rows_of(saved.x, begin, end);
    normed_rows(attn_norm_, x, rows_of(normed, begin, end), {});
    const at::Tensor d_normed = at::empty_like(x);
    projection->tile(begin, rows_of(dqkv, begin, end), d_normed);
    attn_norm.backward(begin, d_normed, x, saved.attn_norm.rows(begin, end - begin), rows_of(dx, begin, end),
                       true);
  });
  attn_norm.finish();
  finish_qk_norms(qk_parts);
  projection->finish(dqkv, normed);
}

}  // namespace troupe
