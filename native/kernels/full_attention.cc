// Blocks of queries by head, in LibTorch's products.
#include "kernels/full_attention.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/parallel.h"
#include "base/simulated.h"

namespace troupe::ops {

namespace {

// Queries of one head whose scores exist at once.
constexpr int64_t kQueryBlock = 256;

// [n, heads * D] -> [heads, n, D] float32, contiguous.
at::Tensor by_head(const at::Tensor& rows, int64_t heads) {
  return rows.view({rows.size(0), heads, rows.size(1) / heads}).transpose(0, 1).to(at::kFloat).contiguous();
}

// [heads, n, D] -> [n, heads * D]
at::Tensor by_row(const at::Tensor& heads) {
  return heads.transpose(0, 1).reshape({heads.size(1), heads.size(0) * heads.size(2)});
}

struct Operands {
  at::Tensor q, k, v;  // [heads, n, D]
};

Operands operands(const AttentionSpec& spec, const at::Tensor& qkv, const Segment& segment) {
  const int64_t columns = spec.num_heads * spec.head_dim;
  const auto part = [&](int64_t i) {
    return by_head(qkv.narrow(0, segment.begin, segment.size()).narrow(1, i * columns, columns).contiguous(),
                   spec.num_heads);
  };
  return {part(0), part(1), part(2)};
}

// body(head, begin, end) for every head's blocks of queries [begin, end), each on one thread of a CPU.
template <typename Body>
void for_each_block(const at::Device& device, const AttentionSpec& spec, int64_t queries, const Body& body) {
  const int64_t blocks = (queries + kQueryBlock - 1) / kQueryBlock;
  parallel_items(device, spec.num_heads * blocks, [&](int64_t item) {
    const int64_t begin = item % blocks * kQueryBlock;
    body(item / blocks, begin, std::min(queries, begin + kQueryBlock));
  });
}

// body(begin, end) for the blocks in order.
template <typename Body>
void for_each_block_in_order(int64_t queries, const Body& body) {
  for (int64_t begin = 0; begin < queries; begin += kQueryBlock)
    body(begin, std::min(queries, begin + kQueryBlock));
}

// Those to compute: in a simulation the longest, which takes most, and of which nothing is left for the
// others.
std::vector<Segment> to_compute(const at::Tensor& qkv, const Segments& segments) {
  std::vector<Segment> all(segments.begin(), segments.end());
  if (!simulated(qkv) || all.empty()) return all;
  const auto shorter = [](const Segment& a, const Segment& b) { return a.size() < b.size(); };
  return {*std::max_element(all.begin(), all.end(), shorter)};
}

// Scaled scores [..., m, n] of q [..., m, D] and k [..., n, D].
at::Tensor scores_of(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k) {
  return at::matmul(q, k.transpose(-2, -1)).mul_(spec.scale);
}

}  // namespace

void full_attention_forward(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                            const at::Tensor& out, const at::Tensor& lse) {
  out.zero_();
  for (const Segment& segment : to_compute(qkv, segments)) {
    const int64_t queries = segment.size();
    const Operands x = operands(spec, qkv, segment);
    const at::Tensor heads = at::empty_like(x.q);
    const at::Tensor sums = at::empty({spec.num_heads, queries}, x.q.options());
    const auto attend = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& result, const at::Tensor& sum) {
      const at::Tensor scores = scores_of(spec, q, k);
      const at::Tensor largest = scores.amax(-1, true);
      const at::Tensor weights = scores.sub_(largest).exp_();
      const at::Tensor total = weights.sum(-1, true);
      result.copy_(at::matmul(weights, v).div_(total));
      sum.copy_((largest + total.log()).squeeze(-1));
    };
    if (on_cpu_threads(qkv.device())) {
      for_each_block(qkv.device(), spec, queries, [&](int64_t head, int64_t begin, int64_t end) {
        const auto rows = [&](const at::Tensor& t) { return t[head].narrow(0, begin, end - begin); };
        attend(rows(x.q), x.k[head], x.v[head], rows(heads), rows(sums));
      });
    } else {
      for_each_block_in_order(queries, [&](int64_t begin, int64_t end) {
        const auto rows = [&](const at::Tensor& t) { return t.narrow(1, begin, end - begin); };
        attend(rows(x.q), x.k, x.v, rows(heads), rows(sums));
      });
    }
    out.narrow(0, segment.begin, queries).copy_(by_row(heads));
    if (lse.defined()) lse.narrow(1, segment.begin, queries).copy_(sums);
  }
}

void full_attention_backward(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                             const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                             const at::Tensor& dqkv) {
  dqkv.zero_();
  const int64_t columns = spec.num_heads * spec.head_dim;
  for (const Segment& segment : to_compute(qkv, segments)) {
    const int64_t queries = segment.size();
    const Operands x = operands(spec, qkv, segment);
    const auto heads_of = [&](const at::Tensor& rows) {
      return by_head(rows.narrow(0, segment.begin, queries).contiguous(), spec.num_heads);
    };
    const at::Tensor d_o = heads_of(dout);
    const at::Tensor delta = (heads_of(out) * d_o).sum(-1, true);
    const at::Tensor sums = lse.narrow(1, segment.begin, queries).unsqueeze(-1).contiguous();
    const Operands d{at::empty_like(x.q), at::zeros_like(x.k), at::zeros_like(x.v)};
    // One block after another adds to the gradients of keys and values, so these have one order.
    const auto propagate = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                               const at::Tensor& sum, const at::Tensor& block_delta,
                               const at::Tensor& block_do) {
      const at::Tensor probs = scores_of(spec, q, k).sub_(sum).exp_();
      dv.add_(at::matmul(probs.transpose(-2, -1), block_do));
      const at::Tensor d_scores =
          at::matmul(block_do, v.transpose(-2, -1)).sub_(block_delta).mul_(probs).mul_(spec.scale);
      dq.copy_(at::matmul(d_scores, k));
      dk.add_(at::matmul(d_scores.transpose(-2, -1), q));
    };
    if (on_cpu_threads(qkv.device())) {
      parallel_items(qkv.device(), spec.num_heads, [&](int64_t head) {
        for_each_block_in_order(queries, [&](int64_t begin, int64_t end) {
          const auto rows = [&](const at::Tensor& t) { return t[head].narrow(0, begin, end - begin); };
          propagate(rows(x.q), x.k[head], x.v[head], rows(d.q), d.k[head], d.v[head], rows(sums), rows(delta),
                    rows(d_o));
        });
      });
    } else {
      for_each_block_in_order(queries, [&](int64_t begin, int64_t end) {
        const auto rows = [&](const at::Tensor& t) { return t.narrow(1, begin, end - begin); };
        propagate(rows(x.q), x.k, x.v, rows(d.q), d.k, d.v, rows(sums), rows(delta), rows(d_o));
      });
    }
    const at::Tensor target = dqkv.narrow(0, segment.begin, queries);
    target.narrow(1, 0, columns).copy_(by_row(d.q));
    target.narrow(1, columns, columns).copy_(by_row(d.k));
    target.narrow(1, 2 * columns, columns).copy_(by_row(d.v));
  }
}

}  // namespace troupe::ops
