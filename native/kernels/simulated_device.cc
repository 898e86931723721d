// The memory of the kernels of a GPU, from the shapes in kernels/cuda: see [Note: simulated memory] in
// base/simulated.h.
#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "base/parallel.h"
#include "kernels/cpu_dispatch.h"
#include "kernels/device_ops.h"
#include "kernels/key_layout.h"
#include "kernels/logits_chunk.h"

namespace troupe::kernels {

namespace {

at::TensorOptions floats(const at::Tensor& like) {
  return like.options().dtype(at::kFloat);
}

// ChunkedHead of kernels/cuda/linear_log_prob.cc.
struct Head {
  at::Tensor logits, padded;
  Head(const at::Tensor& hidden, const at::Tensor& weight) {
    const int64_t chunk = logits_rows(weight.size(0));
    logits = at::empty({chunk, logits_stride(weight.size(0))}, floats(hidden));
    if (hidden.size(0) % chunk != 0) padded = at::empty({chunk, hidden.size(1)}, hidden.options());
  }
  int64_t rows(const at::Tensor& hidden) const { return std::min(logits.size(0), hidden.size(0)); }
};

void head_forward(const ops::LogProbSpec&, const at::Tensor& hidden, const at::Tensor& weight,
                  const at::Tensor&, const ops::LogProbRows&) {
  const AllocateFor part(MemoryPart::kHead);
  const Head head(hidden, weight);
}

void head_backward(const ops::LogProbSpec&, const at::Tensor& hidden, const at::Tensor& weight,
                   const at::Tensor&, const ops::LogProbRows&, bool entropy_gradient,
                   const ops::RowGradients& gradients, const at::Tensor&, const at::Tensor&) {
  const AllocateFor part(MemoryPart::kHead);
  const Head head(hidden, weight);
  const int64_t rows = head.rows(hidden);
  const at::Tensor by_log_prob = at::empty({rows}, floats(hidden));
  const at::Tensor by_entropy = entropy_gradient ? at::empty({rows}, floats(hidden)) : at::Tensor();
  if (rows > 0) gradients(0, rows, by_log_prob, by_entropy);
}

// Keys and values by run of queries, where they are not those of the packed array.
at::Tensor laid_out(const at::Tensor& kv, const ops::KeyLayout& layout) {
  if (!layout.index.defined()) return {};
  return at::empty({layout.index.size(0), kv.size(1)}, kv.options());
}

void attention_forward(const ops::AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                       const ops::Segments& segments, const at::Tensor&, const at::Tensor&) {
  const int64_t rows = ops::real_queries(segments);
  const at::Tensor keys = laid_out(kv, segments.key_layout(kv.device()));
  const at::Tensor result = at::empty({rows, spec.num_heads * spec.head_dim}, q.options());
  const at::Tensor lse = at::empty({spec.num_heads, rows}, floats(q));
}

// Beside the gradients flash attention sums that by the queries in float32, and has those by keys and values
// once for every query head.
void attention_backward(const ops::AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                        const at::Tensor&, const at::Tensor&, const at::Tensor&,
                        const ops::Segments& segments, const at::Tensor&, const at::Tensor&) {
  constexpr int64_t kQueryBlock = 128;
  const ops::KeyLayout& layout = segments.key_layout(kv.device());
  const int64_t rows = ops::real_queries(segments), columns = spec.num_heads * spec.head_dim;
  const int64_t keys = layout.index.defined() ? layout.index.size(0) : rows;
  const int64_t padded = rows + kQueryBlock * static_cast<int64_t>(segments.query_runs().size());
  const at::Tensor gathered = laid_out(kv, layout);
  const at::Tensor dq = at::empty({rows, columns}, q.options());
  const at::Tensor dkv = at::empty({keys, kv.size(1)}, q.options());
  const at::Tensor expanded =
      spec.num_heads == spec.num_kv_heads ? at::Tensor() : at::empty({keys, 2 * columns}, q.options());
  const at::Tensor dq_sum = at::empty({padded, columns}, floats(q));
  const at::Tensor row_sums = at::empty({spec.num_heads, padded}, floats(q));
}

// States of prefixes that others have, as far as they are kept.
int64_t shared_prefixes(const ops::Segments& segments) {
  std::set<int64_t> prefixes;
  for (const ops::Segment& segment : segments) prefixes.insert(segment.prefix);
  prefixes.erase(-1);
  return static_cast<int64_t>(prefixes.size());
}
at::Tensor delta_states(const ops::DeltaSpec& spec, int64_t count, const at::Tensor& like) {
  return at::empty({count, spec.value_heads, spec.key_dim, spec.value_dim}, floats(like));
}

void gated_delta_forward(const ops::DeltaSpec& spec, const ops::DeltaRows&, const ops::Segments& segments,
                         const at::Tensor& out) {
  delta_states(spec, shared_prefixes(segments), out);
}

// Of kernels/cuda/gated_delta_rule.cc; the scratch of the branches is gone when that of the others is taken.
void gated_delta_backward(const ops::DeltaSpec& spec, const ops::DeltaRows&, const ops::Segments& segments,
                          const at::Tensor& dout, const ops::DeltaRows&) {
  int64_t branches = 0, scratch[2] = {0, 0};
  for (const ops::Segment& segment : segments) {
    const bool branch = segment.prefix >= 0;
    branches += branch ? 1 : 0;
    scratch[branch ? 1 : 0] += spec.key_heads * delta_scratch(segment.size(), spec.key_dim);
  }
  const int64_t shared = shared_prefixes(segments);
  const at::Tensor states = delta_states(spec, shared, dout);
  const at::Tensor gradients = delta_states(spec, shared + branches, dout);
  for (const int64_t count : {scratch[1], scratch[0]}) at::empty({count}, floats(dout));
}

}  // namespace

const DeviceOps* simulated_device_ops() {
  static const DeviceOps ops{
      row_kernels(),  // they allocate nothing, and are not called on meta tensors
      [](const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) {},
      nullptr,  // their callers know what they allocate
      nullptr,
      head_forward,
      head_backward,
      attention_forward,
      attention_backward,
      nullptr,
      nullptr,
      gated_delta_forward,
      gated_delta_backward,
      nullptr,
  };
  return &ops;
}

}  // namespace troupe::kernels
