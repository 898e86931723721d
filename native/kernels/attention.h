// Causal attention over packed segments with common prefixes: forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace troupe::ops {

class KeyLayout;

// Consecutive rows of one sequence. A sequence is one segment, or a prefix that it shares with others
// (their common prompt) and the rows that follow it.
struct Segment {
  int64_t begin = 0, end = 0;  // rows
  int64_t prefix = -1;         // an earlier segment, itself without prefix, that comes before; -1: none
  int64_t size() const { return end - begin; }
  bool operator==(const Segment&) const = default;
};

// Rows [begin, end) of one segment as queries.
struct QueryRun {
  int64_t segment = 0, begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const QueryRun&) const = default;
};

// The segments of packed rows, one behind the other from row 0.
class Segments : public std::vector<Segment> {
 public:
  using std::vector<Segment>::vector;
  // Where the queries are some of the rows (and the keys all of them): which, in the order in which they lie
  // one behind the other. None: all.
  std::optional<std::vector<QueryRun>> share;
  // The share, or one run for each segment.
  std::vector<QueryRun> query_runs() const;
  // How their keys lie on `device`, for kernels that take keys by segment: made at the first call and kept,
  // for every layer of both passes over the rows, until the segments change. One thread at a time.
  const KeyLayout& key_layout(at::Device device) const;

 private:
  mutable std::shared_ptr<const KeyLayout> key_layout_;
};

// One segment per sequence, from sequence offsets [S+1].
Segments separate_segments(const std::vector<int64_t>& offsets);
// Position of a segment's first row in its sequence.
inline int64_t first_position(const Segments& segments, const Segment& segment) {
  return segment.prefix < 0 ? 0 : segments[static_cast<size_t>(segment.prefix)].size();
}
// Rows that belong to a segment.
inline int64_t real_rows(const Segments& segments) {
  return segments.empty() ? 0 : segments.back().end;
}
// Of them, those that are queries.
int64_t real_queries(const Segments& segments);

// Causal attention over packed segments: a query sees the keys of its own sequence (its segment's and
// the prefix's) at its own position and before, and with a sliding window only those with q - k < window.
// Legend: T rows, N of them queries, Q/K query/key heads, D head_dim.
struct AttentionSpec {
  int64_t num_heads = 0;     // Q
  int64_t num_kv_heads = 0;  // K
  int64_t head_dim = 0;      // D
  double scale = 1;
  double softcap = 0;  // s = cap * tanh(s / cap) on the scaled scores; 0 = off
  int64_t window = 0;  // 0 = full
  // Query heads per key head in the model of whose heads these are a part: a row's bits are those of the
  // whole. 0: these are all, Q / K.
  int64_t shape_groups = 0;
  // [Q] attention sinks (kernels/attention_sinks.h); undefined: none.
  at::Tensor sinks = {};
  // false: every row of a segment sees all of them (kernels/full_attention.h), for segments without prefixes,
  // windows, caps and sinks.
  bool causal = true;
};

// q [N, Q*D], kv [T, 2K*D] (k, v), both after rotary and with adjacent columns: the queries of the segments'
// runs, and all their rows as keys. Rows behind the last run (of kv: behind the last segment) belong to none;
// they give zeros. out [N, Q*D]; lse [Q, N] float32 (log-sum-exp of the scaled scores and of the sink) is
// written when defined. A row's result depends on the rows it sees and on its position alone, bitwise: not on
// how long its sequence is, whether the prefix is shared, which other rows are queries, or what else is
// packed.
void attention_forward(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                       const Segments& segments, const at::Tensor& out, const at::Tensor& lse);

// dq [N, Q*D] and dkv [T, 2K*D] are fully overwritten; the second is the part of these queries. Recomputes
// the probabilities from lse, which has the sinks already: their own gradient is sinks_gradient()'s.
void attention_backward(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                        const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                        const Segments& segments, const at::Tensor& dq, const at::Tensor& dkv);

// The same where all rows are queries: qkv and dqkv [T, (Q+2K)*D], q, k and v side by side.
void attention_forward(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                       const at::Tensor& out, const at::Tensor& lse);
void attention_backward(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                        const at::Tensor& dqkv);

// Of rows of queries, keys and values side by side [T, (Q+2K)*D], or more: the first, and the others.
at::Tensor queries_of(const AttentionSpec& spec, const at::Tensor& qkv);
at::Tensor keys_and_values_of(const AttentionSpec& spec, const at::Tensor& qkv);

}  // namespace troupe::ops
