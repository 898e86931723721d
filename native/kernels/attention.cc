// Attention forward on a CPU, and the choice of implementation.
#include "kernels/attention.h"

#include <ATen/ATen.h>

#include <limits>

#include "base/parallel.h"
#include "kernels/attention_blocks.h"
#include "kernels/attention_reference.h"
#include "kernels/attention_sinks.h"
#include "kernels/cpu/isa.h"
#include "kernels/gemm.h"

TROUPE_DECLARE_TABLES(AttentionKernels, attention_table)

namespace troupe::kernels {
const AttentionKernels& attention_kernels() {
  return TROUPE_PICK_TABLE(attention_table);
}
}  // namespace troupe::kernels

namespace troupe::ops {

using namespace attention;

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct ForwardScratch {
  at::Tensor floats, operands;
};

ForwardScratch forward_scratch(int64_t rows, int64_t dim, int64_t key_cols, at::ScalarType operand,
                               const at::Device& device) {
  const auto options = at::TensorOptions().device(device);
  return {at::empty({rows * (dim + key_cols + 3)}, options.dtype(at::kFloat)),
          at::empty({rows * dim + 2 * key_cols * dim + rounded_size(operand, rows * key_cols)},
                    options.dtype(operand))};
}

template <typename Scalar>
struct ForwardArrays {
  RowArray<Scalar> q, kv, out;
  RowArray<float> lse;  // a row per head
};

// Queries of a run at positions [q0, q0 + block), see [Note: one shape per position].
template <typename Scalar, typename Operand>
void forward_block(const Shape& shape, const ForwardArrays<Scalar>& arrays, const Queries& run, int64_t head,
                   int64_t q0) {
  const Sequence& sequence = run.sequence;
  const int64_t dim = shape.spec.head_dim;
  const int64_t queries = shape.query_block;
  const int64_t q1 = q0 + queries;
  const int64_t begin = std::max(q0, run.begin);  // the queries that are there
  const int64_t count = std::min(q1, run.end) - begin;
  const int64_t row = run.row + begin - run.begin;
  const int64_t rows = shape.shape_groups * queries;
  const int64_t key_begin = shape.first_key(q0);
  const int64_t key_cols = std::min(kKeyBlock, q1 - key_begin);
  const ForwardScratch scratch =
      forward_scratch(rows, dim, key_cols, c10::CppTypeToScalarType<Operand>::value, at::kCPU);
  float* o = scratch.floats.data_ptr<float>();
  float* scores = o + rows * dim;
  float* row_max = scores + rows * key_cols;
  float* row_sum = row_max + rows;
  float* correction = row_sum + rows;
  Operand* q = scratch.operands.data_ptr<Operand>();
  Operand* k = q + rows * dim;
  Operand* v = k + key_cols * dim;
  Operand* rounded = v + key_cols * dim;

  if (count < queries || shape.groups < shape.shape_groups) std::fill(q, q + rows * dim, Operand(0));
  for (int64_t g = 0; g < shape.groups; ++g) {
    load_rows(arrays.q.at(row, shape.q_column(head, g)), arrays.q.ld, count, dim,
              q + (g * queries + begin - q0) * dim);
  }
  std::fill(row_max, row_max + rows, kMinusInfinity);
  std::fill(row_sum, row_sum + rows, 0.0f);
  const at::Tensor q_matrix = matrix(q, rows, dim, dim);
  const at::Tensor o_matrix = matrix(o, rows, dim, dim);
  for (int64_t k0 = key_begin; k0 < q1; k0 += kKeyBlock) {
    const int64_t cols = std::min(kKeyBlock, q1 - k0);
    load_positions(sequence, arrays.kv.at(0, shape.k_column(head)), arrays.kv.ld, k0, k0 + cols, dim, k);
    load_positions(sequence, arrays.kv.at(0, shape.v_column(head)), arrays.kv.ld, k0, k0 + cols, dim, v);
    const auto pack = [&](Operand* keys, bool transposed) {
      return PackedMatrix::of(matrix(keys, cols, dim, dim), transposed, /*parallel=*/false);
    };
    const at::Tensor score_matrix = matrix(scores, rows, cols, cols);
    gemm(q_matrix, pack(k, true), score_matrix, false);
    kernels::attention_kernels().softmax(scores, shape.block(shape.shape_groups, q0, queries, k0, cols),
                                         row_max, row_sum, correction);
    if (k0 != key_begin) kernels::attention_kernels().scale_rows(o, rows, dim, correction);
    gemm(operand_of(scores, rows, cols, rounded), pack(v, false), o_matrix, k0 != key_begin);
  }
  for (int64_t g = 0; g < shape.groups; ++g) {
    const int64_t first = g * queries + begin - q0;
    kernels::attention_kernels().divide_rows(o + first * dim, count, dim, row_sum + first);
    store_rows(o + first * dim, count, dim, arrays.out.at(row, shape.q_column(head, g)), arrays.out.ld);
    if (arrays.lse.data == nullptr) continue;
    float* head_lse = arrays.lse.at(head * shape.groups + g, row);
    for (int64_t i = 0; i < count; ++i) head_lse[i] = row_max[first + i] + std::log(row_sum[first + i]);
  }
}

// What forward_cpu allocates: see [Note: simulated memory].
void simulate_forward(const AttentionSpec& spec, const at::Tensor& array, const Segments& segments) {
  const Shape shape(spec);
  int64_t items = 0, longest = 0;
  for (const Queries& run : attention::runs_of(segments)) {
    longest = std::max(longest, round_up(run.end, shape.query_block));
    items += spec.num_kv_heads * ((run.end - run.begin + shape.query_block - 1) / shape.query_block);
  }
  const int64_t rows = shape.shape_groups * shape.query_block, dim = spec.head_dim;
  const int64_t cols = std::min({kKeyBlock, longest, longest - shape.first_key(longest - shape.query_block)});
  simulate_threads(items, [&] {
    const ForwardScratch scratch = forward_scratch(rows, dim, cols, operand_type(array), array.device());
    const auto part = [](const at::Tensor& all, int64_t r, int64_t c) {
      return all.narrow(0, 0, r * c).view({r, c});
    };
    const at::Tensor& operands = scratch.operands;
    const at::Tensor& probs = operands.scalar_type() == at::kFloat ? scratch.floats : operands;
    gemm(part(operands, rows, dim), PackedMatrix::of(part(operands, cols, dim), true),
         part(scratch.floats, rows, cols), false);
    gemm(part(probs, rows, cols), PackedMatrix::of(part(operands, cols, dim), false),
         part(scratch.floats, rows, dim), true);
  });
}

template <typename Scalar, typename Operand>
void forward_cpu(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                 const Segments& segments, const at::Tensor& out, const at::Tensor& lse) {
  const Shape shape(spec);
  struct Item {
    Queries run;
    int64_t q0;
  };
  std::vector<Item> items;
  for (const Queries& run : attention::runs_of(segments)) {
    const int64_t first = run.begin / shape.query_block * shape.query_block;
    for (int64_t q0 = first; q0 < run.end; q0 += shape.query_block) items.push_back({run, q0});
  }
  // Longest first, so that no thread starts the largest piece last.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.q0 > b.q0; });
  const ForwardArrays<Scalar> arrays{RowArray<Scalar>::of(q), RowArray<Scalar>::of(kv),
                                     RowArray<Scalar>::of(out),
                                     lse.defined() ? RowArray<float>::of(lse) : RowArray<float>{nullptr, 0}};
  const int64_t count = static_cast<int64_t>(items.size()) * spec.num_kv_heads;
  parallel_items(count, [&](int64_t i) {
    const Item& item = items[static_cast<size_t>(i / spec.num_kv_heads)];
    forward_block<Scalar, Operand>(shape, arrays, item.run, i % spec.num_kv_heads, item.q0);
  });
  const int64_t real = real_queries(segments);
  out.narrow(0, real, out.size(0) - real).zero_();
}

// Without sinks.
void attend(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv, const Segments& segments,
            const at::Tensor& out, const at::Tensor& lse) {
  if (const auto* device = flash_attention(spec, q)) {
    return device->attention_forward(spec, q, kv, segments, out, lse);
  }
  if (!on_cpu_threads(q.device())) return attention_forward_reference(spec, q, kv, segments, out, lse);
  if (simulated(q)) return simulate_forward(spec, q, segments);
  if (q.scalar_type() == at::kFloat) return forward_cpu<float, float>(spec, q, kv, segments, out, lse);
  if (operand_type(q) == at::kFloat) return forward_cpu<at::BFloat16, float>(spec, q, kv, segments, out, lse);
  forward_cpu<at::BFloat16, at::BFloat16>(spec, q, kv, segments, out, lse);
}

}  // namespace

Segments separate_segments(const std::vector<int64_t>& offsets) {
  Segments segments;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) segments.push_back({offsets[s], offsets[s + 1], -1});
  return segments;
}

std::vector<QueryRun> Segments::query_runs() const {
  if (share) return *share;
  std::vector<QueryRun> runs;
  for (size_t s = 0; s < size(); ++s)
    runs.push_back({static_cast<int64_t>(s), (*this)[s].begin, (*this)[s].end});
  return runs;
}

int64_t real_queries(const Segments& segments) {
  if (!segments.share) return real_rows(segments);
  int64_t rows = 0;
  for (const QueryRun& run : *segments.share) rows += run.size();
  return rows;
}

at::Tensor queries_of(const AttentionSpec& spec, const at::Tensor& qkv) {
  return qkv.narrow(1, 0, spec.num_heads * spec.head_dim);
}

at::Tensor keys_and_values_of(const AttentionSpec& spec, const at::Tensor& qkv) {
  return qkv.narrow(1, spec.num_heads * spec.head_dim, 2 * spec.num_kv_heads * spec.head_dim);
}

void attention_forward(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                       const Segments& segments, const at::Tensor& out, const at::Tensor& lse) {
  if (!spec.sinks.defined()) return attend(spec, q, kv, segments, out, lse);
  const at::Tensor sums =
      lse.defined() ? lse : at::empty({spec.num_heads, q.size(0)}, q.options().dtype(at::kFloat));
  attend(spec, q, kv, segments, out, sums);
  add_sinks(spec, out, sums, real_queries(segments));
}

void attention_forward(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                       const at::Tensor& out, const at::Tensor& lse) {
  attention_forward(spec, queries_of(spec, qkv), keys_and_values_of(spec, qkv), segments, out, lse);
}

}  // namespace troupe::ops
