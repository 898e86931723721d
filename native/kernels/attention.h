// Causal attention over packed segments with common prefixes: forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
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

// The segments of packed rows, one behind the other from row 0.
class Segments : public std::vector<Segment> {
 public:
  using std::vector<Segment>::vector;
  // How their keys lie on `device`, for kernels that take keys by segment: made at the first call and kept, for
  // every layer of both passes over the rows, until the segments change. One thread at a time.
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

// Causal attention over packed segments: a query sees the keys of its own sequence (its segment's and
// the prefix's) at its own position and before, and with a sliding window only those with q - k < window.
// Legend: T rows, Q/K query/key heads, D head_dim.
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
};

// qkv [T, (Q+2K)*D] (q, k, v after rotary); the rows behind the last segment belong to none and give
// zeros. out [T, Q*D]; lse [Q, T] float32 (log-sum-exp of the scaled scores) is written when defined. A
// row's result depends on the rows it sees and on its position alone, bitwise: not on how long its
// sequence is, whether the prefix is shared, or what else is packed.
void attention_forward(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                       const at::Tensor& out, const at::Tensor& lse);

// dqkv [T, (Q+2K)*D] is fully overwritten. Recomputes the probabilities from lse.
void attention_backward(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                        const at::Tensor& dqkv);

}  // namespace troupe::ops
