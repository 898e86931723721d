#include "kernels/attention.h"

#include <ATen/ATen.h>

#include <limits>

#include "core/parallel.h"
#include "kernels/attention_reference.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/isa.h"

TROUPE_DECLARE_TABLES(AttentionKernels, attention_table)

namespace troupe::kernels {
const AttentionKernels& attention_kernels() {
  return TROUPE_PICK_TABLE(attention_table);
}
}  // namespace troupe::kernels

namespace troupe::ops {

namespace {

constexpr int64_t kKeyBlock = 512;   // keys per softmax update
constexpr int64_t kScoreRows = 256;  // query rows (heads of a group x positions) per block, about
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

at::Tensor matrix(float* data, int64_t rows, int64_t cols, int64_t ld) {
  return at::from_blob(data, {rows, cols}, {ld, 1}, at::kFloat);
}

// [rows, D] of one head of the packed array as contiguous float32 (whatever the compute dtype).
template <typename Scalar>
void load_rows(const Scalar* source, int64_t ld, int64_t rows, int64_t cols, float* target) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) target[r * cols + c] = static_cast<float>(source[r * ld + c]);
  }
}
template <typename Scalar>
void store_rows(const float* source, int64_t rows, int64_t cols, Scalar* target, int64_t ld) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) target[r * ld + c] = static_cast<Scalar>(source[r * cols + c]);
  }
}

// The work of one (sequence, key head): its G query heads attend to its keys, in blocks of queries.
struct Shape {
  const AttentionSpec& spec;
  int64_t groups;       // G = Q / K
  int64_t query_block;  // positions per block
  int64_t qkv_ld, out_ld;

  explicit Shape(const AttentionSpec& s)
      : spec(s),
        groups(s.num_heads / s.num_kv_heads),
        query_block(std::clamp<int64_t>(kScoreRows / groups, 16, kScoreRows)),
        qkv_ld((s.num_heads + 2 * s.num_kv_heads) * s.head_dim),
        out_ld(s.num_heads * s.head_dim) {}

  int64_t q_column(int64_t head, int64_t group) const { return (head * groups + group) * spec.head_dim; }
  int64_t k_column(int64_t head) const { return (spec.num_heads + head) * spec.head_dim; }
  int64_t v_column(int64_t head) const { return (spec.num_heads + spec.num_kv_heads + head) * spec.head_dim; }
  int64_t first_key(int64_t q0) const {
    return spec.window > 0 ? std::max<int64_t>(0, q0 - spec.window + 1) : 0;
  }
  kernels::ScoreBlock block(int64_t q0, int64_t queries, int64_t k0, int64_t cols) const {
    return {groups,
            queries,
            cols,
            cols,
            q0,
            k0,
            spec.window,
            static_cast<float>(spec.scale),
            static_cast<float>(spec.softcap)};
  }
};

template <typename Scalar>
void forward_block(const Shape& shape, const Scalar* qkv, int64_t start, int64_t head, int64_t q0, int64_t q1,
                   Scalar* out, float* lse, int64_t lse_ld) {
  const int64_t dim = shape.spec.head_dim;
  const int64_t queries = q1 - q0;
  const int64_t rows = shape.groups * queries;
  const int64_t key_begin = shape.first_key(q0);
  const int64_t key_cols = std::min(kKeyBlock, q1 - key_begin);
  const at::Tensor scratch =
      at::empty({rows * (2 * dim + key_cols) + 2 * key_cols * dim + 3 * rows}, at::kFloat);
  float* q = scratch.data_ptr<float>();
  float* o = q + rows * dim;
  float* scores = o + rows * dim;
  float* k = scores + rows * key_cols;
  float* v = k + key_cols * dim;
  float* row_max = v + key_cols * dim;
  float* row_sum = row_max + rows;
  float* correction = row_sum + rows;

  for (int64_t g = 0; g < shape.groups; ++g) {
    load_rows(qkv + (start + q0) * shape.qkv_ld + shape.q_column(head, g), shape.qkv_ld, queries, dim,
              q + g * queries * dim);
  }
  std::fill(row_max, row_max + rows, kMinusInfinity);
  std::fill(row_sum, row_sum + rows, 0.0f);
  at::Tensor q_matrix = matrix(q, rows, dim, dim);
  at::Tensor o_matrix = matrix(o, rows, dim, dim);
  for (int64_t k0 = key_begin; k0 < q1; k0 += kKeyBlock) {
    const int64_t cols = std::min(kKeyBlock, q1 - k0);
    const Scalar* base = qkv + (start + k0) * shape.qkv_ld;
    load_rows(base + shape.k_column(head), shape.qkv_ld, cols, dim, k);
    load_rows(base + shape.v_column(head), shape.qkv_ld, cols, dim, v);
    at::Tensor score_matrix = matrix(scores, rows, cols, cols);
    at::mm_out(score_matrix, q_matrix, matrix(k, cols, dim, dim).t());
    kernels::attention_kernels().softmax(scores, shape.block(q0, queries, k0, cols), row_max, row_sum,
                                         correction);
    if (k0 == key_begin) {
      at::mm_out(o_matrix, score_matrix, matrix(v, cols, dim, dim));
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < dim; ++c) o[r * dim + c] *= correction[r];
      }
      at::addmm_out(o_matrix, o_matrix, score_matrix, matrix(v, cols, dim, dim));
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float inverse = 1.0f / row_sum[r];
    for (int64_t c = 0; c < dim; ++c) o[r * dim + c] *= inverse;
  }
  for (int64_t g = 0; g < shape.groups; ++g) {
    store_rows(o + g * queries * dim, queries, dim,
               out + (start + q0) * shape.out_ld + shape.q_column(head, g), shape.out_ld);
    if (lse == nullptr) continue;
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t r = g * queries + i;
      lse[(head * shape.groups + g) * lse_ld + start + q0 + i] = row_max[r] + std::log(row_sum[r]);
    }
  }
}

// One (sequence, key head) at a time, so that dk and dv have one writer.
template <typename Scalar>
void backward_head(const Shape& shape, const Scalar* qkv, const Scalar* out, const Scalar* dout,
                   const float* lse, int64_t lse_ld, int64_t start, int64_t length, int64_t head,
                   Scalar* dqkv) {
  const int64_t dim = shape.spec.head_dim;
  const int64_t max_rows = shape.groups * std::min(shape.query_block, length);
  const int64_t max_cols = std::min(kKeyBlock, length);
  const at::Tensor kv = at::empty({4, length, dim}, at::kFloat);
  float* k = kv.data_ptr<float>();
  float* v = k + length * dim;
  float* dk = v + length * dim;
  float* dv = dk + length * dim;
  load_rows(qkv + start * shape.qkv_ld + shape.k_column(head), shape.qkv_ld, length, dim, k);
  load_rows(qkv + start * shape.qkv_ld + shape.v_column(head), shape.qkv_ld, length, dim, v);
  std::fill(dk, dk + 2 * length * dim, 0.0f);

  const at::Tensor scratch = at::empty({max_rows * (4 * dim + 2 * max_cols + 2)}, at::kFloat);
  float* q = scratch.data_ptr<float>();
  float* o = q + max_rows * dim;
  float* d_o = o + max_rows * dim;
  float* dq = d_o + max_rows * dim;
  float* scores = dq + max_rows * dim;
  float* dprobs = scores + max_rows * max_cols;
  float* block_lse = dprobs + max_rows * max_cols;
  float* delta = block_lse + max_rows;

  for (int64_t q0 = 0; q0 < length; q0 += shape.query_block) {
    const int64_t q1 = std::min(length, q0 + shape.query_block);
    const int64_t queries = q1 - q0;
    const int64_t rows = shape.groups * queries;
    for (int64_t g = 0; g < shape.groups; ++g) {
      const int64_t column = shape.q_column(head, g);
      const int64_t at = g * queries * dim;
      load_rows(qkv + (start + q0) * shape.qkv_ld + column, shape.qkv_ld, queries, dim, q + at);
      load_rows(out + (start + q0) * shape.out_ld + column, shape.out_ld, queries, dim, o + at);
      load_rows(dout + (start + q0) * shape.out_ld + column, shape.out_ld, queries, dim, d_o + at);
      std::copy_n(lse + (head * shape.groups + g) * lse_ld + start + q0, queries, block_lse + g * queries);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float sum = 0;
      for (int64_t c = 0; c < dim; ++c) sum += o[r * dim + c] * d_o[r * dim + c];
      delta[r] = sum;
    }
    const at::Tensor q_matrix = matrix(q, rows, dim, dim);
    const at::Tensor do_matrix = matrix(d_o, rows, dim, dim);
    at::Tensor dq_matrix = matrix(dq, rows, dim, dim);
    const int64_t key_begin = shape.first_key(q0);
    for (int64_t k0 = key_begin; k0 < q1; k0 += kKeyBlock) {
      const int64_t cols = std::min(kKeyBlock, q1 - k0);
      const at::Tensor k_matrix = matrix(k + k0 * dim, cols, dim, dim);
      at::Tensor score_matrix = matrix(scores, rows, cols, cols);
      at::Tensor dprob_matrix = matrix(dprobs, rows, cols, cols);
      at::Tensor dk_matrix = matrix(dk + k0 * dim, cols, dim, dim);
      at::Tensor dv_matrix = matrix(dv + k0 * dim, cols, dim, dim);
      at::mm_out(score_matrix, q_matrix, k_matrix.t());
      at::mm_out(dprob_matrix, do_matrix, matrix(v + k0 * dim, cols, dim, dim).t());
      kernels::attention_kernels().softmax_backward(scores, dprobs, shape.block(q0, queries, k0, cols),
                                                    block_lse, delta);
      at::addmm_out(dv_matrix, dv_matrix, score_matrix.t(), do_matrix);
      at::addmm_out(dk_matrix, dk_matrix, dprob_matrix.t(), q_matrix);
      if (k0 == key_begin) {
        at::mm_out(dq_matrix, dprob_matrix, k_matrix);
      } else {
        at::addmm_out(dq_matrix, dq_matrix, dprob_matrix, k_matrix);
      }
    }
    for (int64_t g = 0; g < shape.groups; ++g) {
      store_rows(dq + g * queries * dim, queries, dim,
                 dqkv + (start + q0) * shape.qkv_ld + shape.q_column(head, g), shape.qkv_ld);
    }
  }
  store_rows(dk, length, dim, dqkv + start * shape.qkv_ld + shape.k_column(head), shape.qkv_ld);
  store_rows(dv, length, dim, dqkv + start * shape.qkv_ld + shape.v_column(head), shape.qkv_ld);
}

template <typename Scalar>
void forward_cpu(const AttentionSpec& spec, const at::Tensor& qkv, const std::vector<int64_t>& offsets,
                 const at::Tensor& out, const at::Tensor& lse) {
  const Shape shape(spec);
  struct Item {
    int64_t start, q0, q1;
  };
  std::vector<Item> items;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t length = offsets[s + 1] - offsets[s];
    for (int64_t q0 = 0; q0 < length; q0 += shape.query_block) {
      items.push_back({offsets[s], q0, std::min(length, q0 + shape.query_block)});
    }
  }
  // Longest first, so that no thread starts the largest piece last.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.q1 > b.q1; });
  const Scalar* source = qkv.data_ptr<Scalar>();
  Scalar* target = out.data_ptr<Scalar>();
  float* lse_data = lse.defined() ? lse.data_ptr<float>() : nullptr;
  const int64_t count = static_cast<int64_t>(items.size()) * spec.num_kv_heads;
  parallel_items(count, [&](int64_t i) {
    const Item& item = items[static_cast<size_t>(i / spec.num_kv_heads)];
    forward_block<Scalar>(shape, source, item.start, i % spec.num_kv_heads, item.q0, item.q1, target,
                          lse_data, qkv.size(0));
  });
  out.narrow(0, offsets.back(), out.size(0) - offsets.back()).zero_();
}

template <typename Scalar>
void backward_cpu(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                  const at::Tensor& lse, const at::Tensor& dout, const std::vector<int64_t>& offsets,
                  const at::Tensor& dqkv) {
  const Shape shape(spec);
  std::vector<size_t> order(offsets.size() - 1);
  for (size_t s = 0; s < order.size(); ++s) order[s] = s;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return offsets[a + 1] - offsets[a] > offsets[b + 1] - offsets[b];
  });
  parallel_items(static_cast<int64_t>(order.size()) * spec.num_kv_heads, [&](int64_t i) {
    const size_t s = order[static_cast<size_t>(i / spec.num_kv_heads)];
    backward_head<Scalar>(shape, qkv.data_ptr<Scalar>(), out.data_ptr<Scalar>(), dout.data_ptr<Scalar>(),
                          lse.data_ptr<float>(), qkv.size(0), offsets[s], offsets[s + 1] - offsets[s],
                          i % spec.num_kv_heads, dqkv.data_ptr<Scalar>());
  });
  dqkv.narrow(0, offsets.back(), dqkv.size(0) - offsets.back()).zero_();
}

}  // namespace

void attention_forward(const AttentionSpec& spec, const at::Tensor& qkv, const std::vector<int64_t>& offsets,
                       const at::Tensor& out, const at::Tensor& lse) {
  if (!qkv.is_cpu()) return attention_forward_reference(spec, qkv, offsets, out, lse);
  if (qkv.scalar_type() == at::kFloat) return forward_cpu<float>(spec, qkv, offsets, out, lse);
  forward_cpu<at::BFloat16>(spec, qkv, offsets, out, lse);
}

void attention_backward(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const at::Tensor& dout, const std::vector<int64_t>& offsets,
                        const at::Tensor& dqkv) {
  if (!qkv.is_cpu()) return attention_backward_reference(spec, qkv, out, lse, dout, offsets, dqkv);
  if (qkv.scalar_type() == at::kFloat) return backward_cpu<float>(spec, qkv, out, lse, dout, offsets, dqkv);
  backward_cpu<at::BFloat16>(spec, qkv, out, lse, dout, offsets, dqkv);
}

}  // namespace troupe::ops
