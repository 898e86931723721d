// Attention in LibTorch operations.
#include "kernels/attention_reference.h"

#include <ATen/ATen.h>

#include <limits>

namespace troupe::ops {

namespace {

struct Heads {
  at::Tensor q, k, v;  // [Q, L, D], keys and values repeated for their group
};

at::ScalarType working_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Heads split_heads(const AttentionSpec& spec, const at::Tensor& rows) {
  const int64_t length = rows.size(0);
  const at::Tensor heads = rows.to(working_type(rows))
                               .view({length, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim})
                               .transpose(0, 1);
  const int64_t groups = spec.num_heads / spec.num_kv_heads;
  return {
      heads.narrow(0, 0, spec.num_heads),
      heads.narrow(0, spec.num_heads, spec.num_kv_heads).repeat_interleave(groups, 0),
      heads.narrow(0, spec.num_heads + spec.num_kv_heads, spec.num_kv_heads).repeat_interleave(groups, 0)};
}

// The rows of a segment's whole sequence, the prefix's first.
at::Tensor sequence_rows(const at::Tensor& rows, const Segments& segments, const Segment& segment) {
  const at::Tensor own = rows.narrow(0, segment.begin, segment.size());
  if (segment.prefix < 0) return own;
  const Segment& prefix = segments[static_cast<size_t>(segment.prefix)];
  return at::cat({rows.narrow(0, prefix.begin, prefix.size()), own});
}

// Scaled, capped scores [Q, L - first, L] of the queries from position `first`, -inf where a key is not
// visible.
at::Tensor masked_scores(const AttentionSpec& spec, const Heads& heads, int64_t first) {
  const int64_t length = heads.q.size(1);
  at::Tensor scores =
      at::matmul(heads.q.narrow(1, first, length - first), heads.k.transpose(1, 2)) * spec.scale;
  if (spec.softcap > 0) scores = at::tanh(scores / spec.softcap) * spec.softcap;
  const at::Tensor index = at::arange(length, heads.q.options().dtype(at::kLong));
  const at::Tensor distance = index.narrow(0, first, length - first).unsqueeze(1) - index.unsqueeze(0);
  at::Tensor hidden = distance < 0;
  if (spec.window > 0) hidden = hidden.logical_or(distance >= spec.window);
  return scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
}

}  // namespace

void attention_forward_reference(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                                 const at::Tensor& out, const at::Tensor& lse) {
  for (const Segment& segment : segments) {
    const Heads heads = split_heads(spec, sequence_rows(qkv, segments, segment));
    const at::Tensor scores = masked_scores(spec, heads, first_position(segments, segment));
    const at::Tensor result = at::matmul(at::softmax(scores, -1), heads.v);  // [Q, own, D]
    out.narrow(0, segment.begin, segment.size()).copy_(result.transpose(0, 1).reshape({segment.size(), -1}));
    if (lse.defined()) lse.narrow(1, segment.begin, segment.size()).copy_(at::logsumexp(scores, {-1}));
  }
  out.narrow(0, real_rows(segments), out.size(0) - real_rows(segments)).zero_();
}

void attention_backward_reference(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                                  const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                                  const at::Tensor& dqkv) {
  const int64_t groups = spec.num_heads / spec.num_kv_heads;
  const at::Tensor sum = at::zeros(dqkv.sizes(), dqkv.options().dtype(working_type(dqkv)));
  for (const Segment& segment : segments) {
    const int64_t first = first_position(segments, segment);
    const int64_t own = segment.size();
    const int64_t length = first + own;
    const Heads heads = split_heads(spec, sequence_rows(qkv, segments, segment));
    const auto per_head = [&](const at::Tensor& rows) {
      return rows.narrow(0, segment.begin, own)
          .to(heads.q.scalar_type())
          .view({own, spec.num_heads, spec.head_dim})
          .transpose(0, 1);
    };
    const at::Tensor o = per_head(out);
    const at::Tensor d_o = per_head(dout);
    const at::Tensor scores = masked_scores(spec, heads, first);
    const at::Tensor probs =
        at::exp(scores - lse.narrow(1, segment.begin, own).unsqueeze(-1).to(scores.scalar_type()));
    const at::Tensor delta = (o * d_o).sum(-1, true);
    at::Tensor dscores = probs * (at::matmul(d_o, heads.v.transpose(1, 2)) - delta) * spec.scale;
    if (spec.softcap > 0) {
      dscores = dscores * (1 - at::square(scores.masked_fill(probs == 0, 0) / spec.softcap));
    }
    const auto fold_groups = [&](const at::Tensor& grad) {
      return grad.view({spec.num_kv_heads, groups, length, spec.head_dim}).sum(1);
    };
    const at::Tensor dq = at::constant_pad_nd(at::matmul(dscores, heads.k), {0, 0, first, 0});
    const at::Tensor queries = heads.q.narrow(1, first, own);
    const at::Tensor grad = at::cat({dq, fold_groups(at::matmul(dscores.transpose(1, 2), queries)),
                                     fold_groups(at::matmul(probs.transpose(1, 2), d_o))})
                                .transpose(0, 1)
                                .reshape({length, -1});
    sum.narrow(0, segment.begin, own).add_(grad.narrow(0, first, own));
    if (segment.prefix < 0) continue;
    sum.narrow(0, segments[static_cast<size_t>(segment.prefix)].begin, first).add_(grad.narrow(0, 0, first));
  }
  dqkv.copy_(sum);
}

}  // namespace troupe::ops
