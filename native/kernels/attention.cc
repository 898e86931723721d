#include "kernels/attention.h"

#include <ATen/ATen.h>

#include <limits>
#include <numeric>

#include "core/parallel.h"
#include "kernels/attention_reference.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/isa.h"
#include "kernels/cuda/device_ops.h"

TROUPE_DECLARE_TABLES(AttentionKernels, attention_table)

namespace troupe::kernels {
const AttentionKernels& attention_kernels() {
  return TROUPE_PICK_TABLE(attention_table);
}
}  // namespace troupe::kernels

namespace troupe::ops {

namespace {

constexpr int64_t kKeyBlock = 512;   // keys per softmax update
constexpr int64_t kScoreRows = 128;  // query rows (heads of a group x positions) per block, about
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Positions per block of queries.
//
// [Note: one shape per position] A GEMM may round a row differently when its other dimensions change. In
// the forward pass the blocks therefore lie at multiples of this size in the sequence's positions, are
// always full (rows that are not there are zero, also those of heads that another rank has), and see the
// keys up to the block's end: which GEMMs a position goes through follows from the position alone. The
// backward pass has no such promise to keep and leaves out what is not there.
int64_t query_block_size(int64_t groups) {
  int64_t size = 32;
  while (size > 8 && size * groups > kScoreRows) size /= 2;
  return size;
}

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

// The work of one (segment, key head): its G query heads attend to its keys, in blocks of queries.
struct Shape {
  const AttentionSpec& spec;
  int64_t groups;        // G = Q / K
  int64_t shape_groups;  // of the forward's blocks, see AttentionSpec
  int64_t query_block;   // positions per block
  int64_t qkv_ld, out_ld;

  explicit Shape(const AttentionSpec& s)
      : spec(s),
        groups(s.num_heads / s.num_kv_heads),
        shape_groups(s.shape_groups > 0 ? s.shape_groups : groups),
        query_block(query_block_size(shape_groups)),
        qkv_ld((s.num_heads + 2 * s.num_kv_heads) * s.head_dim),
        out_ld(s.num_heads * s.head_dim) {}

  int64_t q_column(int64_t head, int64_t group) const { return (head * groups + group) * spec.head_dim; }
  int64_t k_column(int64_t head) const { return (spec.num_heads + head) * spec.head_dim; }
  int64_t v_column(int64_t head) const { return (spec.num_heads + spec.num_kv_heads + head) * spec.head_dim; }
  int64_t first_key(int64_t q0) const {
    return spec.window > 0 ? std::max<int64_t>(0, q0 - spec.window + 1) : 0;
  }
  kernels::ScoreBlock block(int64_t heads, int64_t q0, int64_t queries, int64_t k0, int64_t cols) const {
    return {heads,
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

// Where the rows of a sequence lie: positions [0, split) at `prefix`, [split, length) at `own`.
struct Sequence {
  int64_t prefix, own;  // rows
  int64_t split, length;

  Sequence(const Segments& segments, const Segment& segment)
      : prefix(segment.prefix < 0 ? 0 : segments[static_cast<size_t>(segment.prefix)].begin),
        own(segment.begin),
        split(first_position(segments, segment)),
        length(split + segment.size()) {}
  int64_t row(int64_t position) const {
    return position < split ? prefix + position : own + position - split;
  }
};

// One head of positions [p0, p1) as float32 [p1 - p0, D], zeros behind the sequence's end.
template <typename Scalar>
void load_positions(const Sequence& sequence, const Scalar* column, int64_t ld, int64_t p0, int64_t p1,
                    int64_t dim, float* target) {
  const auto part = [&](int64_t begin, int64_t end) {
    if (begin < end)
      load_rows(column + sequence.row(begin) * ld, ld, end - begin, dim, target + (begin - p0) * dim);
  };
  part(p0, std::min(p1, sequence.split));
  part(std::max(p0, sequence.split), std::min(p1, sequence.length));
  const int64_t end = std::max(p0, std::min(p1, sequence.length));
  std::fill(target + (end - p0) * dim, target + (p1 - p0) * dim, 0.0f);
}

// Queries of the segment at positions [q0, q0 + block), see [Note: one shape per position].
template <typename Scalar>
void forward_block(const Shape& shape, const Scalar* qkv, const Sequence& sequence, int64_t head, int64_t q0,
                   Scalar* out, float* lse, int64_t lse_ld) {
  const int64_t dim = shape.spec.head_dim;
  const int64_t queries = shape.query_block;
  const int64_t q1 = q0 + queries;
  const int64_t begin = std::max(q0, sequence.split);  // the queries that are there
  const int64_t count = std::min(q1, sequence.length) - begin;
  const int64_t rows = shape.shape_groups * queries;
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

  if (count < queries || shape.groups < shape.shape_groups) std::fill(q, q + rows * dim, 0.0f);
  for (int64_t g = 0; g < shape.groups; ++g) {
    load_rows(qkv + sequence.row(begin) * shape.qkv_ld + shape.q_column(head, g), shape.qkv_ld, count, dim,
              q + (g * queries + begin - q0) * dim);
  }
  std::fill(row_max, row_max + rows, kMinusInfinity);
  std::fill(row_sum, row_sum + rows, 0.0f);
  at::Tensor q_matrix = matrix(q, rows, dim, dim);
  at::Tensor o_matrix = matrix(o, rows, dim, dim);
  for (int64_t k0 = key_begin; k0 < q1; k0 += kKeyBlock) {
    const int64_t cols = std::min(kKeyBlock, q1 - k0);
    load_positions(sequence, qkv + shape.k_column(head), shape.qkv_ld, k0, k0 + cols, dim, k);
    load_positions(sequence, qkv + shape.v_column(head), shape.qkv_ld, k0, k0 + cols, dim, v);
    at::Tensor score_matrix = matrix(scores, rows, cols, cols);
    at::mm_out(score_matrix, q_matrix, matrix(k, cols, dim, dim).t());
    kernels::attention_kernels().softmax(scores, shape.block(shape.shape_groups, q0, queries, k0, cols),
                                         row_max, row_sum, correction);
    if (k0 == key_begin) {
      at::mm_out(o_matrix, score_matrix, matrix(v, cols, dim, dim));
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < dim; ++c) o[r * dim + c] *= correction[r];
      }
      at::addmm_out(o_matrix, o_matrix, score_matrix, matrix(v, cols, dim, dim));
    }
  }
  for (int64_t g = 0; g < shape.groups; ++g) {
    const int64_t first = g * queries + begin - q0;
    for (int64_t r = first; r < first + count; ++r) {
      const float inverse = 1.0f / row_sum[r];
      for (int64_t c = 0; c < dim; ++c) o[r * dim + c] *= inverse;
    }
    store_rows(o + first * dim, count, dim,
               out + sequence.row(begin) * shape.out_ld + shape.q_column(head, g), shape.out_ld);
    if (lse == nullptr) continue;
    float* head_lse = lse + (head * shape.groups + g) * lse_ld + sequence.row(begin);
    for (int64_t i = 0; i < count; ++i) head_lse[i] = row_max[first + i] + std::log(row_sum[first + i]);
  }
}

// The gradients of one key head of a segment and of the segments it is the prefix of, by one thread: the
// keys of a prefix collect from all of them.
template <typename Scalar>
class BackwardHead {
 public:
  BackwardHead(const Shape& shape, const Segments& segments, int64_t head, const Scalar* qkv,
               const Scalar* out, const Scalar* dout, const float* lse, int64_t lse_ld, Scalar* dqkv)
      : shape_(shape),
        segments_(segments),
        head_(head),
        qkv_(qkv),
        out_(out),
        dout_(dout),
        lse_(lse),
        lse_ld_(lse_ld),
        dqkv_(dqkv) {}

  // family[0] has no prefix; the others follow it.
  void run(const std::vector<size_t>& family) {
    int64_t longest = 0;
    for (const size_t s : family) longest = std::max(longest, Sequence(segments_, segments_[s]).length);
    const int64_t dim = shape_.spec.head_dim;
    keys_ = at::empty({4, longest, dim}, at::kFloat);
    k_ = keys_.template data_ptr<float>();
    v_ = k_ + longest * dim;
    dk_ = v_ + longest * dim;
    dv_ = dk_ + longest * dim;
    max_rows_ = shape_.groups * std::min(shape_.query_block, longest);
    max_cols_ = std::min(kKeyBlock, longest);
    scratch_ = at::empty({max_rows_ * (4 * dim + 2 * max_cols_ + 2)}, at::kFloat);
    for (const size_t s : family) {
      const Sequence sequence(segments_, segments_[s]);
      load_keys(sequence);
      for (int64_t q0 = sequence.split; q0 < sequence.length; q0 += shape_.query_block) {
        queries(sequence, q0, std::min(sequence.length, q0 + shape_.query_block));
      }
      if (s != family.front()) store_key_gradients(sequence);
    }
    store_key_gradients(Sequence(segments_, segments_[family.front()]));
  }

 private:
  // The segment's own positions; those of the prefix stay, with what they have collected.
  void load_keys(const Sequence& sequence) {
    const int64_t dim = shape_.spec.head_dim;
    const int64_t at = sequence.split * dim;
    const int64_t count = sequence.length - sequence.split;
    const Scalar* base = qkv_ + sequence.own * shape_.qkv_ld;
    load_rows(base + shape_.k_column(head_), shape_.qkv_ld, count, dim, k_ + at);
    load_rows(base + shape_.v_column(head_), shape_.qkv_ld, count, dim, v_ + at);
    std::fill_n(dk_ + at, count * dim, 0.0f);
    std::fill_n(dv_ + at, count * dim, 0.0f);
  }

  void store_key_gradients(const Sequence& sequence) {
    const int64_t dim = shape_.spec.head_dim;
    const int64_t at = sequence.split * dim;
    const int64_t count = sequence.length - sequence.split;
    Scalar* base = dqkv_ + sequence.own * shape_.qkv_ld;
    store_rows(dk_ + at, count, dim, base + shape_.k_column(head_), shape_.qkv_ld);
    store_rows(dv_ + at, count, dim, base + shape_.v_column(head_), shape_.qkv_ld);
  }

  void queries(const Sequence& sequence, int64_t q0, int64_t q1) {
    const int64_t dim = shape_.spec.head_dim;
    const int64_t queries = q1 - q0;
    const int64_t rows = shape_.groups * queries;
    const int64_t row = sequence.row(q0);
    float* q = scratch_.template data_ptr<float>();
    float* o = q + max_rows_ * dim;
    float* d_o = o + max_rows_ * dim;
    float* dq = d_o + max_rows_ * dim;
    float* scores = dq + max_rows_ * dim;
    float* dprobs = scores + max_rows_ * max_cols_;
    float* block_lse = dprobs + max_rows_ * max_cols_;
    float* delta = block_lse + max_rows_;
    for (int64_t g = 0; g < shape_.groups; ++g) {
      const int64_t column = shape_.q_column(head_, g);
      const int64_t at = g * queries * dim;
      load_rows(qkv_ + row * shape_.qkv_ld + column, shape_.qkv_ld, queries, dim, q + at);
      load_rows(out_ + row * shape_.out_ld + column, shape_.out_ld, queries, dim, o + at);
      load_rows(dout_ + row * shape_.out_ld + column, shape_.out_ld, queries, dim, d_o + at);
      std::copy_n(lse_ + (head_ * shape_.groups + g) * lse_ld_ + row, queries, block_lse + g * queries);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float sum = 0;
      for (int64_t c = 0; c < dim; ++c) sum += o[r * dim + c] * d_o[r * dim + c];
      delta[r] = sum;
    }
    const at::Tensor q_matrix = matrix(q, rows, dim, dim);
    const at::Tensor do_matrix = matrix(d_o, rows, dim, dim);
    at::Tensor dq_matrix = matrix(dq, rows, dim, dim);
    const int64_t key_begin = shape_.first_key(q0);
    for (int64_t k0 = key_begin; k0 < q1; k0 += kKeyBlock) {
      const int64_t cols = std::min(kKeyBlock, q1 - k0);
      const at::Tensor k_matrix = matrix(k_ + k0 * dim, cols, dim, dim);
      at::Tensor score_matrix = matrix(scores, rows, cols, cols);
      at::Tensor dprob_matrix = matrix(dprobs, rows, cols, cols);
      at::Tensor dk_matrix = matrix(dk_ + k0 * dim, cols, dim, dim);
      at::Tensor dv_matrix = matrix(dv_ + k0 * dim, cols, dim, dim);
      at::mm_out(score_matrix, q_matrix, k_matrix.t());
      at::mm_out(dprob_matrix, do_matrix, matrix(v_ + k0 * dim, cols, dim, dim).t());
      kernels::attention_kernels().softmax_backward(
          scores, dprobs, shape_.block(shape_.groups, q0, queries, k0, cols), block_lse, delta);
      at::addmm_out(dv_matrix, dv_matrix, score_matrix.t(), do_matrix);
      at::addmm_out(dk_matrix, dk_matrix, dprob_matrix.t(), q_matrix);
      if (k0 == key_begin) {
        at::mm_out(dq_matrix, dprob_matrix, k_matrix);
      } else {
        at::addmm_out(dq_matrix, dq_matrix, dprob_matrix, k_matrix);
      }
    }
    for (int64_t g = 0; g < shape_.groups; ++g) {
      store_rows(dq + g * queries * dim, queries, dim,
                 dqkv_ + row * shape_.qkv_ld + shape_.q_column(head_, g), shape_.qkv_ld);
    }
  }

  const Shape& shape_;
  const Segments& segments_;
  int64_t head_;
  const Scalar* qkv_;
  const Scalar* out_;
  const Scalar* dout_;
  const float* lse_;
  int64_t lse_ld_;
  Scalar* dqkv_;
  at::Tensor keys_, scratch_;
  int64_t max_rows_ = 0, max_cols_ = 0;
  float *k_ = nullptr, *v_ = nullptr, *dk_ = nullptr, *dv_ = nullptr;
};

template <typename Scalar>
void forward_cpu(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                 const at::Tensor& out, const at::Tensor& lse) {
  const Shape shape(spec);
  struct Item {
    Sequence sequence;
    int64_t q0;
  };
  std::vector<Item> items;
  for (const Segment& segment : segments) {
    const Sequence sequence(segments, segment);
    const int64_t first = sequence.split / shape.query_block * shape.query_block;
    for (int64_t q0 = first; q0 < sequence.length; q0 += shape.query_block) items.push_back({sequence, q0});
  }
  // Longest first, so that no thread starts the largest piece last.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.q0 > b.q0; });
  const Scalar* source = qkv.data_ptr<Scalar>();
  Scalar* target = out.data_ptr<Scalar>();
  float* lse_data = lse.defined() ? lse.data_ptr<float>() : nullptr;
  const int64_t count = static_cast<int64_t>(items.size()) * spec.num_kv_heads;
  parallel_items(count, [&](int64_t i) {
    const Item& item = items[static_cast<size_t>(i / spec.num_kv_heads)];
    forward_block<Scalar>(shape, source, item.sequence, i % spec.num_kv_heads, item.q0, target, lse_data,
                          qkv.size(0));
  });
  out.narrow(0, real_rows(segments), out.size(0) - real_rows(segments)).zero_();
}

// Segments without a prefix, each with those that follow it, the most work first.
std::vector<std::vector<size_t>> families(const Segments& segments) {
  std::vector<std::vector<size_t>> result;
  std::vector<size_t> family_of(segments.size());
  std::vector<double> work;
  for (size_t s = 0; s < segments.size(); ++s) {
    const Sequence sequence(segments, segments[s]);
    const double scores = static_cast<double>(sequence.length) * static_cast<double>(sequence.length) -
                          static_cast<double>(sequence.split) * static_cast<double>(sequence.split);
    if (segments[s].prefix < 0) {
      family_of[s] = result.size();
      result.push_back({s});
      work.push_back(scores);
    } else {
      family_of[s] = family_of[static_cast<size_t>(segments[s].prefix)];
      result[family_of[s]].push_back(s);
      work[family_of[s]] += scores;
    }
  }
  std::vector<size_t> order(result.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return work[a] > work[b]; });
  std::vector<std::vector<size_t>> sorted;
  for (const size_t f : order) sorted.push_back(std::move(result[f]));
  return sorted;
}

template <typename Scalar>
void backward_cpu(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                  const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                  const at::Tensor& dqkv) {
  const Shape shape(spec);
  const std::vector<std::vector<size_t>> order = families(segments);
  parallel_items(static_cast<int64_t>(order.size()) * spec.num_kv_heads, [&](int64_t i) {
    BackwardHead<Scalar>(shape, segments, i % spec.num_kv_heads, qkv.data_ptr<Scalar>(),
                         out.data_ptr<Scalar>(), dout.data_ptr<Scalar>(), lse.data_ptr<float>(), qkv.size(0),
                         dqkv.data_ptr<Scalar>())
        .run(order[static_cast<size_t>(i / spec.num_kv_heads)]);
  });
  dqkv.narrow(0, real_rows(segments), dqkv.size(0) - real_rows(segments)).zero_();
}

// What a GPU does with its own kernels; null for everything else, and for what they cannot do.
const kernels::cuda::DeviceOps* flash_attention(const AttentionSpec& spec, const at::Tensor& qkv) {
  const kernels::cuda::DeviceOps* device = kernels::cuda::device_ops_for(qkv);
  return device != nullptr && device->attention_fits(spec, qkv) ? device : nullptr;
}

}  // namespace

Segments separate_segments(const std::vector<int64_t>& offsets) {
  Segments segments;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) segments.push_back({offsets[s], offsets[s + 1], -1});
  return segments;
}

void attention_forward(const AttentionSpec& spec, const at::Tensor& qkv, const Segments& segments,
                       const at::Tensor& out, const at::Tensor& lse) {
  if (const auto* device = flash_attention(spec, qkv)) {
    return device->attention_forward(spec, qkv, segments, out, lse);
  }
  if (!qkv.is_cpu()) return attention_forward_reference(spec, qkv, segments, out, lse);
  if (qkv.scalar_type() == at::kFloat) return forward_cpu<float>(spec, qkv, segments, out, lse);
  forward_cpu<at::BFloat16>(spec, qkv, segments, out, lse);
}

void attention_backward(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                        const at::Tensor& dqkv) {
  if (const auto* device = flash_attention(spec, qkv)) {
    return device->attention_backward(spec, qkv, out, lse, dout, segments, dqkv);
  }
  if (!qkv.is_cpu()) return attention_backward_reference(spec, qkv, out, lse, dout, segments, dqkv);
  if (qkv.scalar_type() == at::kFloat) return backward_cpu<float>(spec, qkv, out, lse, dout, segments, dqkv);
  backward_cpu<at::BFloat16>(spec, qkv, out, lse, dout, segments, dqkv);
}

}  // namespace troupe::ops
