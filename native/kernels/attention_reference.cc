// Attention in LibTorch operations.
#include "kernels/attention_reference.h"

#include <ATen/ATen.h>

#include <limits>

namespace troupe::ops {

namespace {

at::ScalarType working_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// [rows, heads * D] -> [heads, rows, D]
at::Tensor by_head(const at::Tensor& rows, int64_t heads, int64_t dim) {
  return rows.to(working_type(rows)).reshape({rows.size(0), heads, dim}).transpose(0, 1);
}

// A run of n queries at positions [first, L), and the keys that they may see.
struct Run {
  int64_t row;                 // of the first query
  int64_t first, size;         // size: n
  const Segment* prefix;       // null: none
  int64_t own_begin, own_end;  // rows of the segment's keys
  at::Tensor k, v;             // [Q, L, D], repeated for their group

  at::Tensor queries(const at::Tensor& rows) const { return rows.narrow(0, row, size); }
  int64_t length() const { return first + size; }
};

std::vector<Run> runs_of(const AttentionSpec& spec, const at::Tensor& kv, const Segments& segments) {
  const int64_t groups = spec.num_heads / spec.num_kv_heads;
  std::vector<Run> runs;
  int64_t row = 0;
  for (const QueryRun& run : segments.query_runs()) {
    const Segment& segment = segments[static_cast<size_t>(run.segment)];
    const Segment* prefix = segment.prefix < 0 ? nullptr : &segments[static_cast<size_t>(segment.prefix)];
    at::Tensor keys = kv.narrow(0, segment.begin, run.end - segment.begin);
    if (prefix != nullptr) keys = at::cat({kv.narrow(0, prefix->begin, prefix->size()), keys});
    const at::Tensor heads = by_head(keys, 2 * spec.num_kv_heads, spec.head_dim);
    runs.push_back({row, first_position(segments, segment) + run.begin - segment.begin, run.size(), prefix,
                    segment.begin, run.end,
                    heads.narrow(0, 0, spec.num_kv_heads).repeat_interleave(groups, 0),
                    heads.narrow(0, spec.num_kv_heads, spec.num_kv_heads).repeat_interleave(groups, 0)});
    row += run.size();
  }
  return runs;
}

// Scaled, capped scores [Q, n, L] of the queries q [Q, n, D], -inf where a key is not visible.
at::Tensor masked_scores(const AttentionSpec& spec, const Run& run, const at::Tensor& q) {
  at::Tensor scores = at::matmul(q, run.k.transpose(1, 2)) * spec.scale;
  if (spec.softcap > 0) scores = at::tanh(scores / spec.softcap) * spec.softcap;
  const at::Tensor index = at::arange(run.length(), q.options().dtype(at::kLong));
  const at::Tensor distance = index.narrow(0, run.first, run.size).unsqueeze(1) - index.unsqueeze(0);
  at::Tensor hidden = distance < 0;
  if (spec.window > 0) hidden = hidden.logical_or(distance >= spec.window);
  return scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
}

}  // namespace

void attention_forward_reference(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                                 const Segments& segments, const at::Tensor& out, const at::Tensor& lse) {
  for (const Run& run : runs_of(spec, kv, segments)) {
    const at::Tensor scores =
        masked_scores(spec, run, by_head(run.queries(q), spec.num_heads, spec.head_dim));
    const at::Tensor result = at::matmul(at::softmax(scores, -1), run.v);  // [Q, n, D]
    run.queries(out).copy_(result.transpose(0, 1).reshape({run.size, -1}));
    if (lse.defined()) lse.narrow(1, run.row, run.size).copy_(at::logsumexp(scores, {-1}));
  }
  const int64_t real = real_queries(segments);
  out.narrow(0, real, out.size(0) - real).zero_();
}

void attention_backward_reference(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                                  const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                                  const Segments& segments, const at::Tensor& dq, const at::Tensor& dkv) {
  const int64_t groups = spec.num_heads / spec.num_kv_heads;
  const at::Tensor sum = at::zeros(dkv.sizes(), dkv.options().dtype(working_type(dkv)));
  dq.zero_();
  for (const Run& run : runs_of(spec, kv, segments)) {
    const auto heads_of = [&](const at::Tensor& rows) {
      return by_head(run.queries(rows), spec.num_heads, spec.head_dim);
    };
    const at::Tensor queries = heads_of(q), o = heads_of(out), d_o = heads_of(dout);
    const at::Tensor scores = masked_scores(spec, run, queries);
    const at::Tensor probs =
        at::exp(scores - lse.narrow(1, run.row, run.size).unsqueeze(-1).to(scores.scalar_type()));
    const at::Tensor delta = (o * d_o).sum(-1, true);
    at::Tensor dscores = probs * (at::matmul(d_o, run.v.transpose(1, 2)) - delta) * spec.scale;
    if (spec.softcap > 0) {
      dscores = dscores * (1 - at::square(scores.masked_fill(probs == 0, 0) / spec.softcap));
    }
    const auto fold_groups = [&](const at::Tensor& grad) {
      return grad.view({spec.num_kv_heads, groups, run.length(), spec.head_dim}).sum(1);
    };
    run.queries(dq).copy_(at::matmul(dscores, run.k).transpose(0, 1).reshape({run.size, -1}));
    const at::Tensor grad = at::cat({fold_groups(at::matmul(dscores.transpose(1, 2), queries)),
                                     fold_groups(at::matmul(probs.transpose(1, 2), d_o))})
                                .transpose(0, 1)
                                .reshape({run.length(), -1});
    const int64_t before = run.prefix == nullptr ? 0 : run.prefix->size();
    const int64_t own = run.own_end - run.own_begin;
    sum.narrow(0, run.own_begin, own).add_(grad.narrow(0, before, own));
    if (before > 0) sum.narrow(0, run.prefix->begin, before).add_(grad.narrow(0, 0, before));
  }
  dkv.copy_(sum);
}

void attention_forward_reference(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                                 const at::Tensor& out, const at::Tensor& lse) {
  attention_forward_reference(spec, queries_of(spec, qkv), keys_and_values_of(spec, qkv), segments, out, lse);
}

void attention_backward_reference(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                                  const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                                  const at::Tensor& dqkv) {
  attention_backward_reference(spec, queries_of(spec, qkv), keys_and_values_of(spec, qkv), out, lse, dout,
                               segments, queries_of(spec, dqkv), keys_and_values_of(spec, dqkv));
}

}  // namespace troupe::ops
