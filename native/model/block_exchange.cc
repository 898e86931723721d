// A decoder layer whose matrices several ranks share: the row-local stages, with collectives between them.
#include <ATen/ATen.h>

#include "base/parallel.h"
#include "base/range.h"
#include "megatron/exchange.h"
#include "model/block.h"

// Legend: T rows, of which a rank has T' between the matrices (megatron/exchange.h); H hidden.
namespace troupe {

namespace {

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.defined() ? t.narrow(0, begin, end - begin) : t;
}

// x itself without a norm.
at::Tensor rows_normed(const Norm& norm, const at::Tensor& x, const NormStats& stats, int64_t row_tile) {
  if (!norm.defined()) return x;
  const at::Tensor y = at::empty_like(x);
  for_each_row_tile(x.size(0), row_tile, x.device(), [&](int64_t begin, int64_t end) {
    norm_forward(norm, rows_of(x, begin, end), rows_of(y, begin, end), stats.rows(begin, end - begin));
  });
  return y;
}

}  // namespace

void Block::exchange_attention_inputs(const at::Tensor& x, const RowContext& rows, const at::Tensor& qkv,
                                      BlockSaved* saved, const QkvProjection::Packed& qkv_weight) const {
  const NormStats stats = save_inputs(x, qkv, saved);
  const at::Tensor own = rows_normed(attn_norm_, x, stats, rows.row_tile);
  const at::Tensor normed = rows.exchange->gather(own, {rows.phase, name_ + " input"});
  at::Tensor squares = saved != nullptr ? saved->qk_squares : qk_sums(qkv);
  for_each_row_tile(
      normed.size(0), rows.row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        project_tile(rows, rows_of(normed, begin, end), begin, end, qkv, squares, saved, qkv_weight);
        if (!whole_qk_norm_) turn_tile(rows, begin, end, qkv, squares, saved);
      },
      all_packed(qkv_weight));
  if (!whole_qk_norm_) return;
  squares = rows.exchange->of_whole_rows().sum(squares, {rows.phase, name_ + " norms"});
  if (saved != nullptr) saved->qk_squares = squares;
  for_each_row_tile(normed.size(0), rows.row_tile, x.device(),
                    [&](int64_t begin, int64_t end) { turn_tile(rows, begin, end, qkv, squares, saved); });
}

void Block::exchange_output_and_mlp(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows,
                                    const at::Tensor& out, BlockSaved* saved,
                                    const OutputWeights& weights) const {
  const Exchange& exchange = *rows.exchange;
  const int64_t total = attn.size(0), own = x.size(0), hidden = x.size(1);
  const bool post = attn_post_norm_.defined();
  BlockSaved unused;
  BlockSaved& s = saved != nullptr ? *saved : unused;
  save_output(x, total, saved);
  const at::Tensor mid = saved != nullptr ? s.mid : at::empty_like(x);
  const at::Tensor normed = mlp_norm_.defined() ? at::empty_like(x) : mid;
  // target = residual + the sum of the ranks' parts, with bias and, where the family has one, post norm.
  const auto add = [&](const at::Tensor& sum, const Linear& linear, const Norm& norm, const at::Tensor& kept,
                       const NormStats& stats, const at::Tensor& residual, const at::Tensor& target) {
    if (linear.bias.defined()) at::Tensor(sum).add_(linear.bias);
    at::Tensor result = target;
    if (!norm.defined()) {
      if (residual_scale_ != 1) sum.mul_(residual_scale_);
      at::add_out(result, sum, residual);
      return;
    }
    if (kept.defined()) kept.copy_(sum);
    const at::Tensor scaled = at::empty_like(sum);
    norm_forward(norm, sum, scaled, stats);
    at::add_out(result, scaled, residual);
  };

  const at::Tensor attn_part = at::empty({total, hidden}, x.options());
  for_each_row_tile(
      total, rows.row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        attn_out_.forward_part(rows_of(attn, begin, end), rows_of(attn_part, begin, end), weights.attn_out);
      },
      weights.attn_out.packed());
  const at::Tensor attn_sum = exchange.sum(attn_part, {rows.phase, name_ + " output"});
  for_each_row_tile(own, rows.row_tile, x.device(), [&](int64_t begin, int64_t end) {
    add(rows_of(attn_sum, begin, end), attn_out_, attn_post_norm_, rows_of(s.attn_proj, begin, end),
        s.attn_post_norm.rows(begin, end - begin), rows_of(x, begin, end), rows_of(mid, begin, end));
    normed_rows(mlp_norm_, rows_of(mid, begin, end), rows_of(normed, begin, end),
                s.mlp_norm.rows(begin, end - begin));
  });

  const at::Tensor all = exchange.gather(normed, {rows.phase, mlp_name_ + " input"});
  const bool wanted = out.defined() || post;
  const at::Tensor part = at::empty({total, hidden}, x.options());
  if (moe_) {
    const Range of_experts("experts");
    moe_->forward(all, part, rows.row_tile, saved != nullptr ? &s.moe : nullptr, expert_pass(rows),
                  weights.experts);
  } else {
    for_each_row_tile(
        total, rows.row_tile, x.device(),
        [&](int64_t begin, int64_t end) {
          const at::Tensor inner = s.inner.defined()
                                       ? rows_of(s.inner, begin, end)
                                       : at::empty({end - begin, mlp_in_.out_features()}, x.options());
          mlp_in_.forward(rows_of(all, begin, end), inner, weights.mlp_in);
          if (!wanted) return;
          const at::Tensor activated = at::empty({end - begin, mlp_out_.weight.size(1)}, x.options());
          activation_.forward(inner, activated);
          mlp_out_.forward_part(activated, rows_of(part, begin, end), weights.mlp_out);
        },
        weights.attn_out.packed());
  }
  if (!wanted) return;
  const at::Tensor sum = exchange.sum(part, {rows.phase, mlp_name_ + " output"});
  const at::Tensor result = out.defined() ? out : at::empty_like(x);
  for_each_row_tile(own, rows.row_tile, x.device(), [&](int64_t begin, int64_t end) {
    add(rows_of(sum, begin, end), mlp_out_, mlp_post_norm_, rows_of(s.mlp_proj, begin, end),
        s.mlp_post_norm.rows(begin, end - begin), rows_of(mid, begin, end), rows_of(result, begin, end));
  });
}

at::Tensor Block::exchange_backward_mlp(const at::Tensor& dy, const RowContext& rows, BlockSaved& saved,
                                        const at::Tensor& d_attn) const {
  const Exchange& exchange = *rows.exchange;
  const int64_t total = saved.attn.size(0), own = dy.size(0), hidden = dy.size(1);
  const bool post = attn_post_norm_.defined(), scaled = residual_scale_ != 1, apart = post || scaled;
  const at::Tensor d_mid = at::empty_like(dy);
  const at::Tensor normed = mlp_norm_.defined() ? at::empty_like(dy) : saved.mid;
  const at::Tensor d_proj = apart ? at::empty_like(dy) : at::Tensor();
  const at::Tensor d_mlp_proj = apart ? at::empty_like(dy) : dy;
  NormGradient mlp_norm(mlp_norm_, own, rows.row_tile), attn_post(attn_post_norm_, own, rows.row_tile),
      mlp_post(mlp_post_norm_, own, rows.row_tile);
  for_each_row_tile(own, rows.row_tile, dy.device(), [&](int64_t begin, int64_t end) {
    normed_rows(mlp_norm_, rows_of(saved.mid, begin, end), rows_of(normed, begin, end), {});
    if (scaled) scale_gradient(rows_of(dy, begin, end), rows_of(d_mlp_proj, begin, end));
    if (!post) return;
    mlp_post.backward(begin, rows_of(dy, begin, end), rows_of(saved.mlp_proj, begin, end),
                      saved.mlp_post_norm.rows(begin, end - begin), rows_of(d_mlp_proj, begin, end), false);
  });
  const at::Tensor d_result = exchange.gather(d_mlp_proj, {rows.phase, mlp_name_ + " output"});
  const at::Tensor all_normed = exchange.gather(normed, {rows.phase, mlp_name_ + " input"});

  const at::Tensor d_part = at::empty({total, hidden}, dy.options());
  if (moe_) {
    const Range of_experts("experts backward");
    moe_->backward(d_result, all_normed, saved.moe, d_part, expert_pass(rows));
  } else {
    const at::Tensor d_inner = saved.inner;  // in place: the operation takes its own output as input
    const at::Tensor activated = at::empty({total, mlp_out_.weight.size(1)}, dy.options());
    const at::Tensor sums = activation_.make_sums(total);
    const Linear::Packed in_weight = mlp_in_.pack_backward(), out_weight = mlp_out_.pack_backward();
    for_each_row_tile(total, rows.row_tile, dy.device(), [&](int64_t begin, int64_t end) {
      const at::Tensor d_activated = at::empty({end - begin, activated.size(1)}, dy.options());
      mlp_out_.backward_input(rows_of(d_result, begin, end), d_activated, out_weight);
      activation_.backward(d_activated, rows_of(saved.inner, begin, end), rows_of(d_inner, begin, end),
                           rows_of(activated, begin, end), rows_of(sums, begin, end));
      mlp_in_.backward_input(rows_of(d_inner, begin, end), rows_of(d_part, begin, end), in_weight);
    });
    mlp_out_.accumulate_grad(d_result, activated);
    mlp_in_.accumulate_grad(d_inner, all_normed);
    activation_.finish(sums);
  }
  const at::Tensor d_normed = exchange.sum(d_part, {rows.phase, mlp_name_ + " input"});

  for_each_row_tile(own, rows.row_tile, dy.device(), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    const at::Tensor d_residual = rows_of(d_mid, begin, end);
    d_residual.copy_(rows_of(dy, begin, end));
    mlp_norm.backward(begin, rows_of(d_normed, begin, end), rows_of(saved.mid, begin, end),
                      saved.mlp_norm.rows(begin, count), d_residual, true);
    if (scaled) scale_gradient(d_residual, rows_of(d_proj, begin, end));
    if (!post) return;
    attn_post.backward(begin, d_residual, rows_of(saved.attn_proj, begin, end),
                       saved.attn_post_norm.rows(begin, count), rows_of(d_proj, begin, end), false);
  });
  mlp_norm.finish();
  if (post) {
    attn_post.finish();
    mlp_post.finish();
  }
  const at::Tensor d_attn_proj = exchange.gather(apart ? d_proj : d_mid, {rows.phase, name_ + " output"});
  const Linear::Packed attn_out_weight = attn_out_.pack_backward();
  for_each_row_tile(total, rows.row_tile, dy.device(), [&](int64_t begin, int64_t end) {
    attn_out_.backward_input(rows_of(d_attn_proj, begin, end), rows_of(d_attn, begin, end), attn_out_weight);
  });
  attn_out_.accumulate_grad(d_attn_proj, saved.attn);
  return d_mid;
}

void Block::exchange_backward_attention_inputs(const at::Tensor& dqkv, const RowContext& rows,
                                               const BlockSaved& saved, const at::Tensor& dx) const {
  const Exchange& exchange = *rows.exchange;
  const int64_t own = saved.x.size(0);
  const at::Tensor normed = rows_normed(attn_norm_, saved.x, {}, rows.row_tile);
  const at::Tensor all_normed = exchange.gather(normed, {rows.phase, name_ + " input"});
  const at::Tensor d_part = at::empty({dqkv.size(0), saved.x.size(1)}, dqkv.options());
  const auto projection = qkv_->backward(saved.projection, dqkv.size(0), rows.row_tile);
  const at::Tensor qk_parts = make_qk_parts(dqkv, rows.row_tile);
  at::Tensor products = qk_sums(dqkv);
  if (whole_qk_norm_) {
    for_each_row_tile(dqkv.size(0), rows.row_tile, dqkv.device(), [&](int64_t begin, int64_t end) {
      rotary_backward_tile(dqkv, rows, begin, end, saved, qk_parts, products);
    });
    products = exchange.of_whole_rows().sum(products, {rows.phase, name_ + " norms"});
  }
  for_each_row_tile(dqkv.size(0), rows.row_tile, dqkv.device(), [&](int64_t begin, int64_t end) {
    if (!whole_qk_norm_) rotary_backward_tile(dqkv, rows, begin, end, saved, qk_parts, products);
    whole_norm_backward_tile(dqkv, rows, begin, end, saved, qk_parts, products);
    projection->tile(begin, rows_of(dqkv, begin, end), rows_of(d_part, begin, end));
  });
  finish_qk_norms(qk_parts);
  projection->finish(dqkv, all_normed);
  const at::Tensor d_normed = exchange.sum(d_part, {rows.phase, name_ + " input"});
  NormGradient attn_norm(attn_norm_, own, rows.row_tile);
  for_each_row_tile(own, rows.row_tile, dqkv.device(), [&](int64_t begin, int64_t end) {
    attn_norm.backward(begin, rows_of(d_normed, begin, end), rows_of(saved.x, begin, end),
                       saved.attn_norm.rows(begin, end - begin), rows_of(dx, begin, end), true);
  });
  attn_norm.finish();
}

}  // namespace troupe
