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

// Scaled, capped scores [Q, L, L], -inf where a key is not visible.
at::Tensor masked_scores(const AttentionSpec& spec, const Heads& heads) {
  at::Tensor scores = at::matmul(heads.q, heads.k.transpose(1, 2)) * spec.scale;
  if (spec.softcap > 0) scores = at::tanh(scores / spec.softcap) * spec.softcap;
  const int64_t length = heads.q.size(1);
  const at::Tensor index = at::arange(length, heads.q.options().dtype(at::kLong));
  const at::Tensor distance = index.unsqueeze(1) - index.unsqueeze(0);
  at::Tensor hidden = distance < 0;
  if (spec.window > 0) hidden = hidden.logical_or(distance >= spec.window);
  return scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
}

}  // namespace

void attention_forward_reference(const AttentionSpec& spec, const at::Tensor& qkv,
                                 const std::vector<int64_t>& offsets, const at::Tensor& out,
                                 const at::Tensor& lse) {
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t start = offsets[s];
    const int64_t length = offsets[s + 1] - start;
    const Heads heads = split_heads(spec, qkv.narrow(0, start, length));
    const at::Tensor scores = masked_scores(spec, heads);
    const at::Tensor result = at::matmul(at::softmax(scores, -1), heads.v);  // [Q, L, D]
    out.narrow(0, start, length).copy_(result.transpose(0, 1).reshape({length, -1}));
    if (lse.defined()) lse.narrow(1, start, length).copy_(at::logsumexp(scores, {-1}));
  }
  out.narrow(0, offsets.back(), out.size(0) - offsets.back()).zero_();
}

void attention_backward_reference(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                                  const at::Tensor& lse, const at::Tensor& dout,
                                  const std::vector<int64_t>& offsets, const at::Tensor& dqkv) {
  const int64_t groups = spec.num_heads / spec.num_kv_heads;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t start = offsets[s];
    const int64_t length = offsets[s + 1] - start;
    const Heads heads = split_heads(spec, qkv.narrow(0, start, length));
    const auto per_head = [&](const at::Tensor& rows) {
      return rows.narrow(0, start, length)
          .to(heads.q.scalar_type())
          .view({length, spec.num_heads, spec.head_dim})
          .transpose(0, 1);
    };
    const at::Tensor o = per_head(out);
    const at::Tensor d_o = per_head(dout);
    const at::Tensor scores = masked_scores(spec, heads);
    const at::Tensor probs =
        at::exp(scores - lse.narrow(1, start, length).unsqueeze(-1).to(scores.scalar_type()));
    const at::Tensor delta = (o * d_o).sum(-1, true);
    at::Tensor dscores = probs * (at::matmul(d_o, heads.v.transpose(1, 2)) - delta) * spec.scale;
    if (spec.softcap > 0) {
      dscores = dscores * (1 - at::square(scores.masked_fill(probs == 0, 0) / spec.softcap));
    }
    const auto fold_groups = [&](const at::Tensor& grad) {
      return grad.view({spec.num_kv_heads, groups, length, spec.head_dim}).sum(1);
    };
    const at::Tensor heads_grad =
        at::cat({at::matmul(dscores, heads.k), fold_groups(at::matmul(dscores.transpose(1, 2), heads.q)),
                 fold_groups(at::matmul(probs.transpose(1, 2), d_o))});
    dqkv.narrow(0, start, length).copy_(heads_grad.transpose(0, 1).reshape({length, -1}));
  }
  dqkv.narrow(0, offsets.back(), dqkv.size(0) - offsets.back()).zero_();
}

}  // namespace troupe::ops
