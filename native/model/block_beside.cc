// A decoder layer whose MLP and experts both take the row behind attention, each through norms of its own.
#include <ATen/ATen.h>

#include "base/parallel.h"
#include "base/range.h"
#include "megatron/exchange.h"
#include "model/block.h"

// Gemma 4 (Gemma4TextDecoderLayer of transformers): with the row r behind attention, of which the router's
// norm is a part of the experts' (model/expert_routing.h),
//   y = r + post(norm1(mlp(norm(r))) + norm2(experts(r)))
// Legend: T rows, of which a rank has T' between matrices that ranks share (megatron/exchange.h); H hidden.
// Norms before the matrices are of all T rows on every rank, so that r is gathered once.
namespace troupe {

namespace {

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.defined() ? t.narrow(0, begin, end - begin) : t;
}

// This rank's rows of the sum of all ranks' parts, and all rows of what each rank has some of.
at::Tensor summed(const Exchange* exchange, const at::Tensor& part, const CollectiveLabel& label) {
  return exchange != nullptr ? exchange->sum(part, label) : part;
}

at::Tensor gathered(const Exchange* exchange, const at::Tensor& own, const CollectiveLabel& label) {
  return exchange != nullptr ? exchange->gather(own, label) : own;
}

}  // namespace

at::Tensor Block::attention_residual(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows,
                                     BlockSaved& saved, const OutputWeights& weights) const {
  const at::Tensor part = at::empty({attn.size(0), x.size(1)}, x.options());
  for_each_row_tile(
      attn.size(0), rows.row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        attn_out_.forward_part(rows_of(attn, begin, end), rows_of(part, begin, end), weights.attn_out);
      },
      weights.attn_out.packed());
  const at::Tensor sum = summed(rows.exchange, part, {rows.phase, name_ + " output"});
  const at::Tensor mid = saved.mid.defined() ? saved.mid : at::empty_like(x);
  for_each_row_tile(x.size(0), rows.row_tile, x.device(), [&](int64_t begin, int64_t end) {
    at::Tensor row = rows_of(sum, begin, end), target = rows_of(mid, begin, end);
    if (attn_out_.bias.defined()) row.add_(attn_out_.bias);
    if (saved.attn_proj.defined()) rows_of(saved.attn_proj, begin, end).copy_(row);
    norm_forward(attn_post_norm_, row, target, saved.attn_post_norm.rows(begin, end - begin));
    target.add_(rows_of(x, begin, end));
  });
  return mid;
}

at::Tensor Block::attention_residual_backward(const at::Tensor& d_mid, const RowContext& rows,
                                              const BlockSaved& saved, const at::Tensor& d_attn) const {
  const at::Tensor d_proj = at::empty_like(d_mid);
  NormGradient post(attn_post_norm_, d_mid.size(0), rows.row_tile);
  for_each_row_tile(d_mid.size(0), rows.row_tile, d_mid.device(), [&](int64_t begin, int64_t end) {
    post.backward(begin, rows_of(d_mid, begin, end), rows_of(saved.attn_proj, begin, end),
                  saved.attn_post_norm.rows(begin, end - begin), rows_of(d_proj, begin, end), false);
  });
  post.finish();
  const at::Tensor d_all = gathered(rows.exchange, d_proj, {rows.phase, name_ + " output"});
  const Linear::Packed weight = attn_out_.pack_backward();
  for_each_row_tile(d_attn.size(0), rows.row_tile, d_mid.device(), [&](int64_t begin, int64_t end) {
    attn_out_.backward_input(rows_of(d_all, begin, end), rows_of(d_attn, begin, end), weight);
  });
  attn_out_.accumulate_grad(d_all, saved.attn);
  return d_mid;
}

void Block::output_beside(const at::Tensor& x, const at::Tensor& attn, const RowContext& rows,
                          const at::Tensor& out, BlockSaved* saved, const OutputWeights& weights) const {
  const int64_t total = attn.size(0), own = x.size(0), hidden = x.size(1);
  BlockSaved unused;
  BlockSaved& s = saved != nullptr ? *saved : unused;
  save_output(x, total, saved);
  if (saved != nullptr) {
    s.mlp_norm = NormStats::make(mlp_norm_, total);
    s.mlp_out_norm = NormStats::make(mlp_out_norm_, own);
    s.moe_out_norm = NormStats::make(moe_out_norm_, own);
  }
  const at::Tensor mid = attention_residual(x, attn, rows, s, weights);
  const at::Tensor all = gathered(rows.exchange, mid, {rows.phase, mlp_name_ + " input"});
  const at::Tensor mlp_part = at::empty({total, hidden}, x.options()), moe_part = at::empty_like(mlp_part);
  for_each_row_tile(
      total, rows.row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        const at::Tensor row = rows_of(all, begin, end), normed = at::empty_like(row);
        norm_forward(mlp_norm_, row, normed, s.mlp_norm.rows(begin, end - begin));
        const at::Tensor inner = s.inner.defined()
                                     ? rows_of(s.inner, begin, end)
                                     : at::empty({end - begin, mlp_in_.out_features()}, x.options());
        mlp_in_.forward(normed, inner, weights.mlp_in);
        const at::Tensor activated = at::empty({end - begin, mlp_out_.weight.size(1)}, x.options());
        activation_.forward(inner, activated);
        mlp_out_.forward_part(activated, rows_of(mlp_part, begin, end), weights.mlp_out);
      },
      weights.mlp_in.packed());
  {
    const Range of_experts("experts");
    moe_->forward(all, moe_part, rows.row_tile, saved != nullptr ? &s.moe : nullptr, expert_pass(rows),
                  weights.experts);
  }
  const at::Tensor mlp = summed(rows.exchange, mlp_part, {rows.phase, mlp_name_ + " output"});
  const at::Tensor moe = summed(rows.exchange, moe_part, {rows.phase, mlp_name_ + " experts output"});
  if (saved != nullptr) {
    s.mlp_out = mlp;
    s.moe_out = moe;
  }
  for_each_row_tile(own, rows.row_tile, x.device(), [&](int64_t begin, int64_t end) {
    const at::Tensor sum = s.mlp_proj.defined() ? rows_of(s.mlp_proj, begin, end)
                                                : at::empty({end - begin, hidden}, x.options());
    const at::Tensor other = at::empty_like(sum);
    norm_forward(mlp_out_norm_, rows_of(mlp, begin, end), sum, s.mlp_out_norm.rows(begin, end - begin));
    norm_forward(moe_out_norm_, rows_of(moe, begin, end), other, s.moe_out_norm.rows(begin, end - begin));
    at::Tensor(sum).add_(other);
    // What this norm knows of a row is wanted where the rest is not, too.
    at::Tensor target = out.defined() ? rows_of(out, begin, end) : other;
    norm_forward(mlp_post_norm_, sum, target, s.mlp_post_norm.rows(begin, end - begin));
    if (out.defined()) target.add_(rows_of(mid, begin, end));
  });
}

at::Tensor Block::backward_beside(const at::Tensor& dy, const RowContext& rows, BlockSaved& saved,
                                  const at::Tensor& d_attn) const {
  const int64_t total = saved.attn.size(0), own = dy.size(0);
  const at::Tensor d_mlp = at::empty_like(dy), d_moe = at::empty_like(dy);
  NormGradient post(mlp_post_norm_, own, rows.row_tile), mlp_out(mlp_out_norm_, own, rows.row_tile),
      moe_out(moe_out_norm_, own, rows.row_tile), mlp_norm(mlp_norm_, total, rows.row_tile);
  for_each_row_tile(own, rows.row_tile, dy.device(), [&](int64_t begin, int64_t end) {
    const auto here = [&](const at::Tensor& t) { return rows_of(t, begin, end); };
    const int64_t count = end - begin;
    const at::Tensor d_sum = at::empty_like(here(dy));
    post.backward(begin, here(dy), here(saved.mlp_proj), saved.mlp_post_norm.rows(begin, count), d_sum,
                  false);
    mlp_out.backward(begin, d_sum, here(saved.mlp_out), saved.mlp_out_norm.rows(begin, count), here(d_mlp),
                     false);
    moe_out.backward(begin, d_sum, here(saved.moe_out), saved.moe_out_norm.rows(begin, count), here(d_moe),
                     false);
  });
  const at::Tensor all = gathered(rows.exchange, saved.mid, {rows.phase, mlp_name_ + " input"});
  const at::Tensor d_mlp_all = gathered(rows.exchange, d_mlp, {rows.phase, mlp_name_ + " output"});
  const at::Tensor d_moe_all = gathered(rows.exchange, d_moe, {rows.phase, mlp_name_ + " experts output"});
  const at::Tensor d_part = at::empty_like(all), normed = at::empty_like(all);
  {
    const Range of_experts("experts backward");
    moe_->backward(d_moe_all, all, saved.moe, d_part, expert_pass(rows));
  }
  const at::Tensor d_inner = saved.inner;  // in place: the operation takes its own output as input
  const at::Tensor activated = at::empty({total, mlp_out_.weight.size(1)}, dy.options());
  const Linear::Packed in_weight = mlp_in_.pack_backward(), out_weight = mlp_out_.pack_backward();
  for_each_row_tile(total, rows.row_tile, dy.device(), [&](int64_t begin, int64_t end) {
    const auto here = [&](const at::Tensor& t) { return rows_of(t, begin, end); };
    const at::Tensor d_activated = at::empty_like(here(activated)), d_normed = at::empty_like(here(all));
    mlp_out_.backward_input(here(d_mlp_all), d_activated, out_weight);
    activation_.backward(d_activated, here(saved.inner), here(d_inner), here(activated), {});
    mlp_in_.backward_input(here(d_inner), d_normed, in_weight);
    norm_forward(mlp_norm_, here(all), here(normed), {});
    mlp_norm.backward(begin, d_normed, here(all), saved.mlp_norm.rows(begin, end - begin), here(d_part),
                      true);
  });
  for (NormGradient* norm : {&post, &mlp_out, &moe_out, &mlp_norm}) norm->finish();
  mlp_out_.accumulate_grad(d_mlp_all, activated);
  mlp_in_.accumulate_grad(d_inner, normed);
  at::Tensor d_mid = summed(rows.exchange, d_part, {rows.phase, mlp_name_ + " input"});
  d_mid.add_(dy);
  return attention_residual_backward(d_mid, rows, saved, d_attn);
}

}  // namespace troupe
