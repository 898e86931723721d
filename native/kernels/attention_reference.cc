// Attention in LibTorch operations.
#include "kernels/attention_reference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
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

// [heads, rows, D] -> [rows, heads * D]
at::Tensor by_row(const at::Tensor& heads) {
  return heads.transpose(0, 1).reshape({heads.size(1), -1});
}

// n queries from row `row` on, at positions [first, first + n) of their sequence, and the M keys that they
// may see, at positions [begin, first + n).
struct Block {
  int64_t row, first, size, begin;
  int64_t keys() const { return first + size - begin; }
  at::Tensor queries(const at::Tensor& rows) const { return rows.narrow(0, row, size); }
  at::Tensor seen(const at::Tensor& keys_by_head) const { return keys_by_head.narrow(1, begin, keys()); }
};

// Queries of one segment, and the keys of their sequence before their end: L positions.
struct Run {
  int64_t row, first, size;
  const Segment* prefix;       // null: none
  int64_t own_begin, own_end;  // rows of the segment's keys
  int64_t before() const { return prefix == nullptr ? 0 : prefix->size(); }
  int64_t length() const { return first + size; }

  // Keys and values [2K, L, D].
  at::Tensor gather(const AttentionSpec& spec, const at::Tensor& kv) const {
    at::Tensor rows = kv.narrow(0, own_begin, own_end - own_begin);
    if (prefix != nullptr) rows = at::cat({kv.narrow(0, prefix->begin, prefix->size()), rows});
    return by_head(rows, 2 * spec.num_kv_heads, spec.head_dim).contiguous();
  }

  // The most queries at a time whose scores are not more than `most_scores`, at least one.
  std::vector<Block> blocks(const AttentionSpec& spec, int64_t most_scores) const {
    const double most = static_cast<double>(most_scores) / static_cast<double>(spec.num_heads);
    std::vector<Block> all;
    for (int64_t done = 0; done < size;) {
      const int64_t at = first + done;
      const int64_t begin = spec.window > 0 ? std::max<int64_t>(0, at - spec.window + 1) : 0;
      // n (n + at - begin) <= most
      const double earlier = static_cast<double>(at - begin);
      const double n = (std::sqrt(earlier * earlier + 4 * most) - earlier) / 2;
      const int64_t count = std::clamp<int64_t>(static_cast<int64_t>(n), 1, size - done);
      all.push_back({row + done, at, count, begin});
      done += count;
    }
    return all;
  }
};

std::vector<Run> runs_of(const Segments& segments) {
  std::vector<Run> runs;
  int64_t row = 0;
  for (const QueryRun& run : segments.query_runs()) {
    const Segment& segment = segments[static_cast<size_t>(run.segment)];
    const Segment* prefix = segment.prefix < 0 ? nullptr : &segments[static_cast<size_t>(segment.prefix)];
    runs.push_back({row, first_position(segments, segment) + run.begin - segment.begin, run.size(), prefix,
                    segment.begin, run.end});
    row += run.size();
  }
  return runs;
}

// The heads of a group side by side, which see the same keys: [Q, n, X] -> [K, Q/K * n, X].
at::Tensor by_group(const AttentionSpec& spec, const at::Tensor& heads) {
  return heads.reshape({spec.num_kv_heads, -1, heads.size(2)});
}

// a [Q, n, X] b [K, X, Y], each head by what its group has -> [Q, n, Y]
at::Tensor group_product(const AttentionSpec& spec, const at::Tensor& a, const at::Tensor& b) {
  return at::matmul(by_group(spec, a), b).view({a.size(0), a.size(1), b.size(2)});
}

// a^T b, summed over the heads of a group: [Q, n, X], [Q, n, Y] -> [K, X, Y]
at::Tensor group_sum(const AttentionSpec& spec, const at::Tensor& a, const at::Tensor& b) {
  return at::matmul(by_group(spec, a).transpose(1, 2), by_group(spec, b));
}

// Scaled, capped scores [Q, n, M] of the queries q [Q, n, D] and the keys k [K, M, D], -inf where a key is
// not visible.
at::Tensor masked_scores(const AttentionSpec& spec, const Block& block, const at::Tensor& q,
                         const at::Tensor& k) {
  at::Tensor scores = group_product(spec, q, k.transpose(1, 2)).mul_(spec.scale);
  if (spec.softcap > 0) scores.div_(spec.softcap).tanh_().mul_(spec.softcap);
  const at::Tensor position = at::arange(block.keys(), q.options().dtype(at::kLong));
  const at::Tensor distance =
      position.narrow(0, block.first - block.begin, block.size).unsqueeze(1) - position.unsqueeze(0);
  at::Tensor hidden = distance < 0;
  if (spec.window > 0) hidden = hidden.logical_or(distance >= spec.window);
  return scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

}  // namespace

void attention_forward_reference(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                                 const Segments& segments, const at::Tensor& out, const at::Tensor& lse,
                                 int64_t most_scores) {
  for (const Run& run : runs_of(segments)) {
    const at::Tensor heads = run.gather(spec, kv);
    const at::Tensor k = heads.narrow(0, 0, spec.num_kv_heads);
    const at::Tensor v = heads.narrow(0, spec.num_kv_heads, spec.num_kv_heads);
    for (const Block& block : run.blocks(spec, most_scores)) {
      const at::Tensor queries = by_head(block.queries(q), spec.num_heads, spec.head_dim);
      const at::Tensor scores = masked_scores(spec, block, queries, block.seen(k));
      const at::Tensor largest = scores.amax(-1, true);
      const at::Tensor probs = (scores - largest).exp_();
      const at::Tensor total = probs.sum(-1, true);
      block.queries(out).copy_(by_row(group_product(spec, probs.div_(total), block.seen(v))));
      if (lse.defined()) lse.narrow(1, block.row, block.size).copy_((largest + total.log()).squeeze(-1));
    }
  }
  const int64_t real = real_queries(segments);
  out.narrow(0, real, out.size(0) - real).zero_();
}

void attention_backward_reference(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                                  const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                                  const Segments& segments, const at::Tensor& dq, const at::Tensor& dkv,
                                  int64_t most_scores) {
  const at::Tensor sum = at::zeros(dkv.sizes(), dkv.options().dtype(working_type(dkv)));
  dq.zero_();
  for (const Run& run : runs_of(segments)) {
    const at::Tensor heads = run.gather(spec, kv), gradients = at::zeros_like(heads);
    const auto keys_of = [&](const at::Tensor& both) { return both.narrow(0, 0, spec.num_kv_heads); };
    const auto values_of = [&](const at::Tensor& both) {
      return both.narrow(0, spec.num_kv_heads, spec.num_kv_heads);
    };
    for (const Block& block : run.blocks(spec, most_scores)) {
      const auto heads_of = [&](const at::Tensor& rows) {
        return by_head(block.queries(rows), spec.num_heads, spec.head_dim);
      };
      const at::Tensor k = block.seen(keys_of(heads)), v = block.seen(values_of(heads));
      const at::Tensor queries = heads_of(q), d_o = heads_of(dout);
      const at::Tensor delta = (heads_of(out) * d_o).sum(-1, true);
      at::Tensor scores = masked_scores(spec, block, queries, k);
      const at::Tensor block_lse = lse.narrow(1, block.row, block.size).unsqueeze(-1);
      const at::Tensor probs = (scores - block_lse.to(scores.scalar_type())).exp_();
      block.seen(values_of(gradients)).add_(group_sum(spec, probs, d_o));
      const at::Tensor dscores = group_product(spec, d_o, v.transpose(1, 2)).sub_(delta).mul_(probs);
      dscores.mul_(spec.scale);
      if (spec.softcap > 0) {
        scores.masked_fill_(probs == 0, 0).div_(spec.softcap).square_().neg_().add_(1);
        dscores.mul_(scores);
      }
      block.queries(dq).copy_(by_row(group_product(spec, dscores, k)));
      block.seen(keys_of(gradients)).add_(group_sum(spec, dscores, queries));
    }
    const at::Tensor by_position = by_row(gradients);
    const int64_t before = run.before(), own = run.own_end - run.own_begin;
    sum.narrow(0, run.own_begin, own).add_(by_position.narrow(0, before, own));
    if (before > 0) sum.narrow(0, run.prefix->begin, before).add_(by_position.narrow(0, 0, before));
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
