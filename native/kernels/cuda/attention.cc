// Segments laid out for LibTorch's flash attention.
#include "kernels/cuda/attention.h"

#include <ATen/ATen.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include <algorithm>
#include <optional>

#include "kernels/key_layout.h"

namespace troupe::kernels::cuda {

namespace {

// Where all queries are single, flash attention takes another path with other bits: this much is always
// claimed.
constexpr int64_t kLeastQueries = 2;

int64_t queries(const ops::KeyLayout& layout) {
  return std::max(layout.longest_query, kLeastQueries);
}

// [rows, heads, D] views of the packed arrays, keys and values laid out by run.
struct Operands {
  at::Tensor q, k, v;

  Operands(const ops::AttentionSpec& spec, const at::Tensor& queries, const at::Tensor& packed,
           const ops::Segments& segments, const ops::KeyLayout& layout) {
    q = queries.narrow(0, 0, ops::real_queries(segments)).unflatten(1, {spec.num_heads, spec.head_dim});
    at::Tensor kv = packed.narrow(0, 0, ops::real_rows(segments));
    if (layout.index.defined()) kv = kv.index_select(0, layout.index);
    kv = kv.unflatten(1, {2 * spec.num_kv_heads, spec.head_dim});
    k = kv.narrow(1, 0, spec.num_kv_heads);
    v = kv.narrow(1, spec.num_kv_heads, spec.num_kv_heads);
  }
};

std::optional<int64_t> window_left(const ops::AttentionSpec& spec) {
  return spec.window > 0 ? std::optional<int64_t>(spec.window - 1) : std::nullopt;
}

// LibTorch picks the deterministic backward by a setting of the process.
class Deterministic {
 public:
  Deterministic()
      : algorithms_(at::globalContext().deterministicAlgorithms()),
        warn_only_(at::globalContext().deterministicAlgorithmsWarnOnly()),
        fill_(at::globalContext().deterministicFillUninitializedMemory()) {
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  ~Deterministic() {
    at::globalContext().setDeterministicAlgorithms(algorithms_, warn_only_);
    at::globalContext().setDeterministicFillUninitializedMemory(fill_);
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  bool algorithms_, warn_only_, fill_;
};

void zero_tail(const at::Tensor& out, int64_t rows) {
  out.narrow(0, rows, out.size(0) - rows).zero_();
}

}  // namespace

void flash_attention_forward(const ops::AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                             const ops::Segments& segments, const at::Tensor& out, const at::Tensor& lse) {
  const int64_t rows = ops::real_queries(segments);
  zero_tail(out, rows);
  if (rows == 0) return;
  const ops::KeyLayout& layout = segments.key_layout(q.device());
  const Operands x(spec, q, kv, segments, layout);
  const auto result = at::_flash_attention_forward(
      x.q, x.k, x.v, layout.query_offsets, layout.key_offsets, queries(layout), layout.longest_key,
      /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, spec.scale, window_left(spec),
      /*window_size_right=*/0);
  out.narrow(0, 0, rows).copy_(std::get<0>(result).flatten(1));
  if (lse.defined()) lse.narrow(1, 0, rows).copy_(std::get<1>(result));
}

void flash_attention_backward(const ops::AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                              const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                              const ops::Segments& segments, const at::Tensor& dq, const at::Tensor& dkv) {
  const int64_t rows = ops::real_queries(segments), keys = ops::real_rows(segments);
  zero_tail(dq, rows);
  zero_tail(dkv, rows == 0 ? 0 : keys);
  if (rows == 0) return;
  const ops::KeyLayout& layout = segments.key_layout(q.device());
  const Operands x(spec, q, kv, segments, layout);
  const auto by_head = [&](const at::Tensor& t) {
    return t.narrow(0, 0, rows).unflatten(1, {spec.num_heads, spec.head_dim});
  };
  // The state of dropout's random numbers, of which there are none.
  const at::Tensor no_random = at::empty({2}, q.options().dtype(at::kUInt64));
  const Deterministic deterministic;
  const auto [by_q, by_k, by_v] = at::_flash_attention_backward(
      by_head(dout), x.q, x.k, x.v, by_head(out), lse.narrow(1, 0, rows).contiguous(), layout.query_offsets,
      layout.key_offsets, queries(layout), layout.longest_key, /*dropout_p=*/0.0, /*is_causal=*/true,
      no_random, no_random, spec.scale, window_left(spec), /*window_size_right=*/0);
  const int64_t columns = spec.num_kv_heads * spec.head_dim;
  dq.narrow(0, 0, rows).copy_(by_q.flatten(1));
  const auto store = [&](const at::Tensor& gradient, int64_t column) {
    const at::Tensor part = dkv.narrow(0, 0, keys).narrow(1, column, columns);
    if (!layout.index.defined()) {
      part.copy_(gradient.flatten(1));
    } else {
      sum_copies(gradient.flatten(1), layout.first, layout.source, part);
    }
  };
  store(by_k, 0);
  store(by_v, columns);
}

}  // namespace troupe::kernels::cuda
