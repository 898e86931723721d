// How attention cuts heads and positions into blocks; both passes use it.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/device_ops.h"
#include "kernels/gemm.h"

// What the two passes of attention share: how heads and positions are cut into blocks, and where their rows
// lie.
namespace troupe::ops::attention {

constexpr int64_t kKeyBlock = 512;   // keys per softmax update
constexpr int64_t kScoreRows = 128;  // query rows (heads of a group x positions) per block, about

// Positions per block of queries.
//
// [Note: one shape per position] A GEMM may round a row differently when its other dimensions change. In
// the forward pass the blocks therefore lie at multiples of this size in the sequence's positions, are
// always full (rows that are not there are zero, also those of heads that another rank has), and see the
// keys up to the block's end: which GEMMs a position goes through follows from the position alone. The
// backward pass has no such promise to keep and leaves out what is not there.
inline int64_t query_block_size(int64_t groups) {
  int64_t size = 32;
  while (size > 8 && size * groups > kScoreRows) size /= 2;
  return size;
}

template <typename Value>
at::Tensor matrix(Value* data, int64_t rows, int64_t cols, int64_t ld) {
  return at::from_blob(data, {rows, cols}, {ld, 1}, c10::CppTypeToScalarType<Value>::value);
}

// [Note: operands of attention] Scores, softmax and sums are float32. Operands of the products are, too,
// unless they are bfloat16 in memory and such products are our own: then queries, keys, values and what comes
// from behind go into them as they are, and probabilities (and in the backward pass the gradients of scores)
// rounded, once, as in flash attention on a GPU.
inline at::ScalarType operand_type(const at::Tensor& array) {
  return packs(array) ? array.scalar_type() : at::kFloat;
}

// Float32 numbers [rows, cols] as an operand: where they lie, or rounded into `target`.
inline at::Tensor operand_of(float* data, int64_t rows, int64_t cols, at::BFloat16* target) {
  kernels::attention_kernels().round(data, rows, cols, cols, reinterpret_cast<uint16_t*>(target));
  return matrix(target, rows, cols, cols);
}
inline at::Tensor operand_of(float* data, int64_t rows, int64_t cols, float*) {
  return matrix(data, rows, cols, cols);
}
// Numbers that such a target needs.
inline int64_t rounded_size(at::ScalarType operand, int64_t count) {
  return operand == at::kFloat ? 0 : count;
}

// [rows, D] of one head of the packed array, contiguous.
template <typename Scalar, typename Operand>
void load_rows(const Scalar* source, int64_t ld, int64_t rows, int64_t cols, Operand* target) {
  for (int64_t r = 0; r < rows; ++r) {
    if constexpr (std::is_same_v<Scalar, Operand>) {
      std::copy_n(source + r * ld, cols, target + r * cols);
    } else {
      for (int64_t c = 0; c < cols; ++c) target[r * cols + c] = static_cast<Operand>(source[r * ld + c]);
    }
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

  explicit Shape(const AttentionSpec& s)
      : spec(s),
        groups(s.num_heads / s.num_kv_heads),
        shape_groups(s.shape_groups > 0 ? s.shape_groups : groups),
        query_block(query_block_size(shape_groups)) {}

  int64_t q_column(int64_t head, int64_t group) const { return (head * groups + group) * spec.head_dim; }
  int64_t k_column(int64_t head) const { return head * spec.head_dim; }
  int64_t v_column(int64_t head) const { return (spec.num_kv_heads + head) * spec.head_dim; }
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

// An array of rows with adjacent columns.
template <typename Scalar>
struct RowArray {
  Scalar* data;
  int64_t ld;  // elements from a row to the next

  static RowArray of(const at::Tensor& rows) { return {rows.data_ptr<Scalar>(), rows.stride(0)}; }
  Scalar* at(int64_t row, int64_t column) const { return data + row * ld + column; }
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

// Queries of a sequence: positions [begin, end), the first of which is row `row` of the array of queries.
struct Queries {
  Sequence sequence;
  int64_t segment;
  int64_t begin, end;
  int64_t row;
};
inline std::vector<Queries> runs_of(const Segments& segments) {
  std::vector<Queries> all;
  int64_t row = 0;
  for (const QueryRun& run : segments.query_runs()) {
    const Sequence sequence(segments, segments[static_cast<size_t>(run.segment)]);
    const int64_t begin = sequence.split + run.begin - sequence.own;
    all.push_back({sequence, run.segment, begin, begin + run.size(), row});
    row += run.size();
  }
  return all;
}

// One head of positions [p0, p1): [p1 - p0, D], zeros behind the sequence's end.
template <typename Scalar, typename Operand>
void load_positions(const Sequence& sequence, const Scalar* column, int64_t ld, int64_t p0, int64_t p1,
                    int64_t dim, Operand* target) {
  const auto part = [&](int64_t begin, int64_t end) {
    if (begin < end)
      load_rows(column + sequence.row(begin) * ld, ld, end - begin, dim, target + (begin - p0) * dim);
  };
  part(p0, std::min(p1, sequence.split));
  part(std::max(p0, sequence.split), std::min(p1, sequence.length));
  const int64_t end = std::max(p0, std::min(p1, sequence.length));
  std::fill(target + (end - p0) * dim, target + (p1 - p0) * dim, Operand(0));
}

// What LibTorch's flash attention on a GPU can do.
inline bool flash_attention_fits(const AttentionSpec& spec, const at::Tensor& q) {
  constexpr int64_t kLargestHead = 256, kHeadMultiple = 8;
  return q.scalar_type() == at::kBFloat16 && spec.softcap == 0 && spec.head_dim <= kLargestHead &&
         spec.head_dim % kHeadMultiple == 0;
}

// What a GPU does with its own kernels; null for everything else, and for what they cannot do.
inline const kernels::DeviceOps* flash_attention(const AttentionSpec& spec, const at::Tensor& q) {
  return flash_attention_fits(spec, q) ? kernels::device_ops_for(q) : nullptr;
}

}  // namespace troupe::ops::attention
