// Attention of a decoder layer between its row-local halves, with the exchange around it.
#include <ATen/ATen.h>

#include <optional>

#include "base/parallel.h"
#include "base/range.h"
#include "comm/row_exchange.h"
#include "kernels/attention_sinks.h"
#include "kernels/full_attention.h"
#include "megatron/context_group.h"
#include "model/block.h"
#include "ulysses/sequence_group.h"

namespace troupe {

namespace {

// Where ranks share the rows.
std::optional<RowExchange> exchange_of(const RowContext& rows) {
  if (rows.sequence != nullptr) return RowExchange(rows.sequence->comm());
  if (rows.context != nullptr) return RowExchange(rows.context->comm(), rows.places);
  return std::nullopt;
}

}  // namespace

at::Tensor Block::attend_linearly(at::Tensor mixed, const RowContext& rows, BlockSaved* saved) const {
  const std::optional<RowExchange> exchange = exchange_of(rows);
  const CollectiveLabel label{rows.phase, name_};
  at::Tensor kept, attn;
  if (exchange) {
    const LinearAttentionConfig& all = linear_->config();
    mixed = exchange->gather_rows(mixed, all.column_blocks(), label);
    const at::Tensor own =
        linear_->own_heads(exchange->rank(), exchange->size())->forward(mixed, rows.segments, &kept);
    attn = exchange->gather_columns(own, {all.values()}, label);
  } else {
    attn = linear_->forward(mixed, rows.segments, &kept);
  }
  if (saved != nullptr) {
    saved->qkv = mixed;
    saved->heads_attn = kept;
    saved->attn = attn;
  }
  return attn;
}

at::Tensor Block::attend_linearly_backward(const at::Tensor& d_attn, const RowContext& rows,
                                           const BlockSaved& saved) const {
  const std::optional<RowExchange> exchange = exchange_of(rows);
  if (!exchange) return linear_->backward(saved.qkv, saved.heads_attn, d_attn, rows.segments);
  const LinearAttentionConfig& all = linear_->config();
  const CollectiveLabel label{rows.phase, name_};
  const at::Tensor d_own = exchange->gather_rows(d_attn, {all.values()}, label);
  const at::Tensor d_mixed = linear_->own_heads(exchange->rank(), exchange->size())
                                 ->backward(saved.qkv, saved.heads_attn, d_own, rows.segments);
  return exchange->gather_columns(d_mixed, all.column_blocks(), label);
}

at::Tensor Block::seen_keys(const ops::AttentionSpec& spec, const at::Tensor& qkv,
                            const RowContext& rows) const {
  const at::Tensor own = ops::keys_and_values_of(spec, qkv);
  return rows.context != nullptr ? rows.context->gather(own, rows.places, {rows.phase, name_}) : own;
}

at::Tensor Block::values_of(const at::Tensor& attn, const LatentHeads* latents) const {
  if (latents != nullptr) return latents->values(attn);
  if (linear_ || value_dim_ == attention_.head_dim) return attn;
  const at::Tensor heads = attn.view({attn.size(0), attention_.num_heads, attention_.head_dim});
  // Of values that are one number wide, or of one head, reshape() makes a view whose numbers do not lie side
  // by side.
  return heads.narrow(2, 0, value_dim_)
      .reshape({attn.size(0), attention_.num_heads * value_dim_})
      .contiguous();
}

at::Tensor Block::with_zeros(const at::Tensor& d_attn) const {
  if (value_dim_ == attention_.head_dim) return d_attn;
  const at::Tensor heads =
      at::zeros({d_attn.size(0), attention_.num_heads, attention_.head_dim}, d_attn.options());
  heads.narrow(2, 0, value_dim_).copy_(d_attn.view({d_attn.size(0), attention_.num_heads, value_dim_}));
  return heads.view({d_attn.size(0), attention_.num_heads * attention_.head_dim});
}

at::Tensor Block::gate_heads(const at::Tensor& attn, const at::Tensor& qkv, int64_t row_tile,
                             BlockSaved* saved) const {
  if (!gated_heads_) return attn;
  const int64_t total = attn.size(0), columns = query_columns();
  const at::Tensor gated = at::empty({total, 2 * columns}, attn.options());
  const at::Tensor product = at::empty_like(attn);
  for_each_row_tile(total, row_tile, attn.device(), [&](int64_t begin, int64_t end) {
    const at::Tensor both = gated.narrow(0, begin, end - begin);
    both.narrow(1, 0, columns).copy_(qkv.narrow(0, begin, end - begin).narrow(1, head_columns(), columns));
    both.narrow(1, columns, columns).copy_(attn.narrow(0, begin, end - begin));
    ops::activation_forward(Activation::kSigmoid, /*gated=*/true, both,
                            product.narrow(0, begin, end - begin));
  });
  if (saved != nullptr) saved->gated = gated;
  return product;
}

at::Tensor Block::gate_heads_backward(const at::Tensor& d_attn, int64_t row_tile,
                                      const BlockSaved& saved) const {
  const at::Tensor both = at::empty_like(saved.gated);
  for_each_row_tile(both.size(0), row_tile, both.device(), [&](int64_t begin, int64_t end) {
    const auto tile = [&](const at::Tensor& t) { return t.narrow(0, begin, end - begin); };
    ops::activation_backward(Activation::kSigmoid, /*gated=*/true, tile(d_attn), tile(saved.gated),
                             tile(both), {});
  });
  return both;
}

at::Tensor Block::attend(at::Tensor qkv, const RowContext& rows, BlockSaved* saved) const {
  const Range range(linear_ ? "linear_attention" : "attention");
  if (linear_) return attend_linearly(std::move(qkv), rows, saved);
  const SequenceGroup* group = rows.sequence;
  const at::Tensor gates = gated_heads_ ? qkv : at::Tensor();
  const ops::AttentionSpec spec = group != nullptr ? group->own_heads(attention_) : attention_;
  if (group != nullptr) qkv = group->gather_rows(attention_, qkv, {rows.phase, name_});
  const int64_t total = qkv.size(0);
  const at::Tensor output = at::empty({total, spec.num_heads * spec.head_dim}, qkv.options());
  const at::Tensor lse =
      saved != nullptr ? at::empty({spec.num_heads, total}, qkv.options().dtype(at::kFloat)) : at::Tensor();
  if (spec.causal) {
    ops::attention_forward(spec, ops::queries_of(spec, qkv), seen_keys(spec, qkv, rows), rows.segments,
                           output, lse);
  } else {
    ops::full_attention_forward(spec, qkv, rows.segments, output, lse);
  }
  const at::Tensor values =
      values_of(group != nullptr ? group->gather_query_heads(output, {rows.phase, name_}) : output);
  const at::Tensor attn = gate_heads(values, gates, rows.row_tile, saved);
  if (saved != nullptr) {
    saved->qkv = qkv;
    saved->heads_attn = output;
    saved->lse = lse;
    saved->attn = attn;
  }
  return attn;
}

at::Tensor Block::attend_backward(const at::Tensor& d_attn, const RowContext& rows,
                                  const BlockSaved& saved) const {
  const Range range(linear_ ? "linear_attention backward" : "attention backward");
  if (linear_) return attend_linearly_backward(d_attn, rows, saved);
  const SequenceGroup* group = rows.sequence;
  const ops::AttentionSpec spec = group != nullptr ? group->own_heads(attention_) : attention_;
  const at::Tensor d_gated = gated_heads_ ? gate_heads_backward(d_attn, rows.row_tile, saved) : at::Tensor();
  const at::Tensor d_heads =
      gated_heads_ ? d_gated.narrow(1, query_columns(), query_columns()) : with_zeros(d_attn);
  const at::Tensor d_output =
      group != nullptr ? group->gather_query_rows(d_heads, {rows.phase, name_}) : d_heads;
  const at::Tensor d_input = at::empty_like(saved.qkv);
  if (!spec.causal) {
    ops::full_attention_backward(spec, saved.qkv, saved.heads_attn, saved.lse, d_output, rows.segments,
                                 d_input);
    return d_input;
  }
  const at::Tensor keys = seen_keys(spec, saved.qkv, rows), d_own = ops::keys_and_values_of(spec, d_input);
  const at::Tensor d_keys = rows.context != nullptr ? at::empty_like(keys) : d_own;
  ops::attention_backward(spec, ops::queries_of(spec, saved.qkv), keys, saved.heads_attn, saved.lse, d_output,
                          rows.segments, ops::queries_of(spec, d_input), d_keys);
  accumulate_sinks(spec, d_output, rows, saved);
  if (rows.context != nullptr) d_own.copy_(rows.context->sum(d_keys, rows.places, {rows.phase, name_}));
  const at::Tensor d_qkv =
      group != nullptr ? group->gather_heads(attention_, d_input, {rows.phase, name_}) : d_input;
  if (!gated_heads_) return d_qkv;
  const at::Tensor d_gates = d_gated.narrow(1, 0, query_columns());
  if (group != nullptr) return at::cat({d_qkv, d_gates}, 1);
  d_qkv.narrow(1, head_columns(), query_columns()).copy_(d_gates);
  return d_qkv;
}

void Block::accumulate_sinks(const ops::AttentionSpec& spec, const at::Tensor& d_output,
                             const RowContext& rows, const BlockSaved& saved) const {
  if (!sinks_grad_.defined()) return;
  // In a sequence group a rank has all of the sinks, and finds the gradient of those of its heads.
  const int64_t first = rows.sequence != nullptr ? rows.sequence->rank() * spec.num_heads : 0;
  sinks_grad_.narrow(0, first, spec.num_heads)
      .add_(
          ops::sinks_gradient(spec, saved.heads_attn, saved.lse, d_output, ops::real_queries(rows.segments)));
}

}  // namespace troupe
