// Attention backward on a CPU.
#include <ATen/ATen.h>

#include <numeric>

#include "base/parallel.h"
#include "kernels/attention_blocks.h"
#include "kernels/attention_reference.h"
#include "kernels/gemm.h"

namespace troupe::ops {

using namespace attention;

namespace {

template <typename Scalar>
struct BackwardArrays {
  RowArray<Scalar> q, kv, out, dout, dq, dkv;
  RowArray<float> lse;  // a row per head
};

// The gradients of one key head of a segment and of the segments it is the prefix of, by one thread: the
// keys of a prefix collect from all of them.
// What the pass over one key head needs: keys and values of the longest sequence with their gradients, and
// the arrays of one block of queries.
struct BackwardMemory {
  at::Tensor keys, key_gradients, operands, floats;

  BackwardMemory() = default;
  BackwardMemory(int64_t longest, int64_t rows, int64_t cols, int64_t dim, at::ScalarType operand,
                 const at::Device& device) {
    const auto as_operand = at::TensorOptions(operand).device(device),
               as_float = as_operand.dtype(at::kFloat);
    keys = at::empty({2, longest, dim}, as_operand);
    key_gradients = at::empty({2, longest, dim}, as_float);
    operands = at::empty({rows * 2 * dim + rounded_size(operand, 2 * rows * cols)}, as_operand);
    floats = at::empty({rows * (2 * dim + 2 * cols + 2)}, as_float);
  }
};

// Operand: see [Note: operands of attention].
template <typename Scalar, typename Operand>
class BackwardHead {
 public:
  // runs: of queries, by segment.
  BackwardHead(const Shape& shape, const Segments& segments, const std::vector<std::vector<Queries>>& runs,
               int64_t head, const BackwardArrays<Scalar>& arrays)
      : shape_(shape), segments_(segments), runs_(runs), head_(head), arrays_(arrays) {}

  // family[0] has no prefix; the others follow it.
  void run(const std::vector<size_t>& family) {
    int64_t longest = 0;
    for (const size_t s : family) longest = std::max(longest, Sequence(segments_, segments_[s]).length);
    const int64_t dim = shape_.spec.head_dim;
    blocks_.resize(static_cast<size_t>(longest / kKeyBlock));
    max_rows_ = shape_.groups * std::min(shape_.query_block, longest);
    max_cols_ = std::min(kKeyBlock, longest);
    memory_ = BackwardMemory(longest, max_rows_, max_cols_, dim, c10::CppTypeToScalarType<Operand>::value,
                             at::kCPU);
    k_ = memory_.keys.template data_ptr<Operand>();
    v_ = k_ + longest * dim;
    dk_ = memory_.key_gradients.template data_ptr<float>();
    dv_ = dk_ + longest * dim;
    for (const size_t s : family) {
      const Sequence sequence(segments_, segments_[s]);
      load_keys(sequence);
      for (const Queries& run : runs_[s]) {
        for (int64_t q0 = run.begin; q0 < run.end; q0 += shape_.query_block) {
          queries(run.row + q0 - run.begin, q0, std::min(run.end, q0 + shape_.query_block));
        }
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
    const RowArray<Scalar>& kv = arrays_.kv;
    load_rows(kv.at(sequence.own, shape_.k_column(head_)), kv.ld, count, dim, k_ + at);
    load_rows(kv.at(sequence.own, shape_.v_column(head_)), kv.ld, count, dim, v_ + at);
    std::fill_n(dk_ + at, count * dim, 0.0f);
    std::fill_n(dv_ + at, count * dim, 0.0f);
    for (size_t b = static_cast<size_t>(sequence.split / kKeyBlock); b < blocks_.size(); ++b) blocks_[b] = {};
  }

  // Keys [k0, k0 + cols) as operands. Whole blocks are kept for the queries behind them, and those of a
  // prefix for the sequences that follow.
  struct KeyBlock {
    PackedMatrix k_turned, v_turned, k;
  };
  const KeyBlock& key_block(int64_t k0, int64_t cols) {
    const bool whole = cols == kKeyBlock && k0 % kKeyBlock == 0;
    KeyBlock& block = whole ? blocks_[static_cast<size_t>(k0 / kKeyBlock)] : passing_block_;
    if (whole && block.k.defined()) return block;
    const int64_t dim = shape_.spec.head_dim;
    const auto pack = [&](Operand* rows, bool transposed) {
      return PackedMatrix::of(matrix(rows + k0 * dim, cols, dim, dim), transposed, /*parallel=*/false);
    };
    block = {pack(k_, true), pack(v_, true), pack(k_, false)};
    return block;
  }

  void store_key_gradients(const Sequence& sequence) {
    const int64_t dim = shape_.spec.head_dim;
    const int64_t at = sequence.split * dim;
    const int64_t count = sequence.length - sequence.split;
    const RowArray<Scalar>& dkv = arrays_.dkv;
    store_rows(dk_ + at, count, dim, dkv.at(sequence.own, shape_.k_column(head_)), dkv.ld);
    store_rows(dv_ + at, count, dim, dkv.at(sequence.own, shape_.v_column(head_)), dkv.ld);
  }

  // Positions [q0, q1), from row `row` of the queries.
  void queries(int64_t row, int64_t q0, int64_t q1) {
    const int64_t dim = shape_.spec.head_dim;
    const int64_t queries = q1 - q0;
    const int64_t rows = shape_.groups * queries;
    Operand* q = memory_.operands.template data_ptr<Operand>();
    Operand* d_o = q + max_rows_ * dim;
    Operand* rounded_probs = d_o + max_rows_ * dim;
    Operand* rounded_dscores = rounded_probs + max_rows_ * max_cols_;
    float* o = memory_.floats.template data_ptr<float>();
    float* dq = o + max_rows_ * dim;
    float* scores = dq + max_rows_ * dim;
    float* dprobs = scores + max_rows_ * max_cols_;
    float* block_lse = dprobs + max_rows_ * max_cols_;
    float* delta = block_lse + max_rows_;
    for (int64_t g = 0; g < shape_.groups; ++g) {
      const int64_t column = shape_.q_column(head_, g);
      const int64_t at = g * queries * dim;
      load_rows(arrays_.q.at(row, column), arrays_.q.ld, queries, dim, q + at);
      load_rows(arrays_.out.at(row, column), arrays_.out.ld, queries, dim, o + at);
      load_rows(arrays_.dout.at(row, column), arrays_.dout.ld, queries, dim, d_o + at);
      std::copy_n(arrays_.lse.at(head_ * shape_.groups + g, row), queries, block_lse + g * queries);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float sum = 0;
      for (int64_t c = 0; c < dim; ++c) sum += o[r * dim + c] * static_cast<float>(d_o[r * dim + c]);
      delta[r] = sum;
    }
    const at::Tensor q_matrix = matrix(q, rows, dim, dim);
    const at::Tensor do_matrix = matrix(d_o, rows, dim, dim);
    const PackedMatrix packed_q = PackedMatrix::of(q_matrix, false, /*parallel=*/false);
    const PackedMatrix packed_do = PackedMatrix::of(do_matrix, false, /*parallel=*/false);
    const at::Tensor dq_matrix = matrix(dq, rows, dim, dim);
    const int64_t key_begin = shape_.first_key(q0);
    for (int64_t k0 = key_begin; k0 < q1; k0 += kKeyBlock) {
      const int64_t cols = std::min(kKeyBlock, q1 - k0);
      const KeyBlock& keys = key_block(k0, cols);
      const at::Tensor score_matrix = matrix(scores, rows, cols, cols);
      const at::Tensor dprob_matrix = matrix(dprobs, rows, cols, cols);
      gemm(q_matrix, keys.k_turned, score_matrix, false);
      gemm(do_matrix, keys.v_turned, dprob_matrix, false);
      kernels::attention_kernels().softmax_backward(
          scores, dprobs, shape_.block(shape_.groups, q0, queries, k0, cols), block_lse, delta);
      const at::Tensor probs = operand_of(scores, rows, cols, rounded_probs);
      const at::Tensor dscores = operand_of(dprobs, rows, cols, rounded_dscores);
      gemm_transposed(probs, packed_do, matrix(dv_ + k0 * dim, cols, dim, dim), /*parallel=*/false);
      gemm_transposed(dscores, packed_q, matrix(dk_ + k0 * dim, cols, dim, dim), /*parallel=*/false);
      gemm(dscores, keys.k, dq_matrix, k0 != key_begin);
    }
    for (int64_t g = 0; g < shape_.groups; ++g) {
      store_rows(dq + g * queries * dim, queries, dim, arrays_.dq.at(row, shape_.q_column(head_, g)),
                 arrays_.dq.ld);
    }
  }

  const Shape& shape_;
  const Segments& segments_;
  const std::vector<std::vector<Queries>>& runs_;
  int64_t head_;
  const BackwardArrays<Scalar>& arrays_;
  BackwardMemory memory_;
  std::vector<KeyBlock> blocks_;
  KeyBlock passing_block_;
  int64_t max_rows_ = 0, max_cols_ = 0;
  Operand *k_ = nullptr, *v_ = nullptr;
  float *dk_ = nullptr, *dv_ = nullptr;
};

std::vector<std::vector<Queries>> by_segment(const Segments& segments) {
  std::vector<std::vector<Queries>> runs(segments.size());
  for (const Queries& run : attention::runs_of(segments))
    runs[static_cast<size_t>(run.segment)].push_back(run);
  return runs;
}

// Segments without a prefix, each with those that follow it, the most work first.
std::vector<std::vector<size_t>> families(const Segments& segments,
                                          const std::vector<std::vector<Queries>>& runs) {
  std::vector<std::vector<size_t>> result;
  std::vector<size_t> family_of(segments.size());
  std::vector<double> work;
  for (size_t s = 0; s < segments.size(); ++s) {
    double scores = 0;
    for (const Queries& run : runs[s])
      scores += static_cast<double>(run.end) * static_cast<double>(run.end) -
                static_cast<double>(run.begin) * static_cast<double>(run.begin);
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

// What backward_cpu allocates: see [Note: simulated memory].
void simulate_backward(const AttentionSpec& spec, const at::Tensor& array, const Segments& segments) {
  const Shape shape(spec);
  int64_t longest = 0, families = 0;
  for (const Segment& segment : segments) {
    longest = std::max(longest, Sequence(segments, segment).length);
    if (segment.prefix < 0) ++families;
  }
  const int64_t dim = spec.head_dim;
  const int64_t rows = shape.groups * std::min(shape.query_block, longest);
  const int64_t cols = std::min(kKeyBlock, longest);
  simulate_threads(families * spec.num_kv_heads, [&] {
    const BackwardMemory memory(longest, rows, cols, dim, operand_type(array), array.device());
    const at::Tensor block = memory.keys.view({-1, dim}).narrow(0, 0, cols);
    std::vector<PackedMatrix> packed;  // of whole blocks, and of one that is not
    for (int64_t k0 = 0; k0 < longest; k0 += kKeyBlock) {
      const at::Tensor part = block.narrow(0, 0, std::min(cols, longest - k0));
      for (const bool transposed : {true, true, false}) packed.push_back(PackedMatrix::of(part, transposed));
    }
    const auto matrix = [&](const at::Tensor& all, int64_t r, int64_t c) {
      return all.narrow(0, 0, r * c).view({r, c});
    };
    const PackedMatrix q = PackedMatrix::of(matrix(memory.operands, rows, dim), false);
    const PackedMatrix d_o = PackedMatrix::of(matrix(memory.operands, rows, dim), false);
    const at::Tensor& probs = block.scalar_type() == at::kFloat ? memory.floats : memory.operands;
    gemm_transposed(matrix(probs, rows, cols), q, memory.key_gradients.view({-1, dim}).narrow(0, 0, cols),
                    /*parallel=*/false);
  });
}

template <typename Scalar, typename Operand>
void backward_cpu(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv, const at::Tensor& out,
                  const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                  const at::Tensor& dq, const at::Tensor& dkv) {
  using Rows = RowArray<Scalar>;
  const Shape shape(spec);
  const std::vector<std::vector<Queries>> runs = by_segment(segments);
  const std::vector<std::vector<size_t>> order = families(segments, runs);
  const BackwardArrays<Scalar> arrays{Rows::of(q),  Rows::of(kv),  Rows::of(out),           Rows::of(dout),
                                      Rows::of(dq), Rows::of(dkv), RowArray<float>::of(lse)};
  parallel_items(static_cast<int64_t>(order.size()) * spec.num_kv_heads, [&](int64_t i) {
    BackwardHead<Scalar, Operand>(shape, segments, runs, i % spec.num_kv_heads, arrays)
        .run(order[static_cast<size_t>(i / spec.num_kv_heads)]);
  });
  const auto zero_tail = [](const at::Tensor& gradient, int64_t real) {
    gradient.narrow(0, real, gradient.size(0) - real).zero_();
  };
  zero_tail(dq, real_queries(segments));
  zero_tail(dkv, real_rows(segments));
}

}  // namespace

void attention_backward(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& kv,
                        const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                        const Segments& segments, const at::Tensor& dq, const at::Tensor& dkv) {
  if (const auto* device = flash_attention(spec, q)) {
    return device->attention_backward(spec, q, kv, out, lse, dout, segments, dq, dkv);
  }
  if (!on_cpu_threads(q.device()))
    return attention_backward_reference(spec, q, kv, out, lse, dout, segments, dq, dkv);
  if (simulated(q)) return simulate_backward(spec, q, segments);
  if (q.scalar_type() == at::kFloat)
    return backward_cpu<float, float>(spec, q, kv, out, lse, dout, segments, dq, dkv);
  if (operand_type(q) == at::kFloat)
    return backward_cpu<at::BFloat16, float>(spec, q, kv, out, lse, dout, segments, dq, dkv);
  backward_cpu<at::BFloat16, at::BFloat16>(spec, q, kv, out, lse, dout, segments, dq, dkv);
}

void attention_backward(const AttentionSpec& spec, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const at::Tensor& dout, const Segments& segments,
                        const at::Tensor& dqkv) {
  attention_backward(spec, queries_of(spec, qkv), keys_and_values_of(spec, qkv), out, lse, dout, segments,
                     queries_of(spec, dqkv), keys_and_values_of(spec, dqkv));
}

}  // namespace troupe::ops
