// The head on a CPU, block by block of the vocabulary.
#include "kernels/linear_log_prob.h"

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "base/range.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear_log_prob_kernels.h"
#include "kernels/device_ops.h"
#include "kernels/gemm.h"
#include "kernels/row_sums.h"
#include "kernels/row_tokens.h"

TROUPE_DECLARE_TABLES(LinearLogProbKernels, linear_log_prob_table)

namespace troupe::kernels {
const LinearLogProbKernels& linear_log_prob_kernels() {
  return TROUPE_PICK_TABLE(linear_log_prob_table);
}
}  // namespace troupe::kernels

namespace troupe::ops {

namespace {

constexpr int64_t kBlockRows = 1024;  // rows per unit of work with one block of the vocabulary
constexpr int64_t kLogitsBudget = int64_t{64} << 20;  // bytes of logits that the backward keeps
// Rows of a chunk at least, whatever they take: the weight is packed twice per chunk, and its gradient read
// and written.
constexpr int64_t kLeastChunkRows = 3 * kRowTile;

at::TensorOptions floats(const at::Tensor& like) {
  return like.options().dtype(at::kFloat);
}

// bfloat16 where products of it are summed in float32, float32 elsewhere.
at::Tensor as_operand(const at::Tensor& t) {
  return packs(t) ? t : t.to(at::kFloat);
}

// The vocabulary in blocks; each (row tile, block) is one GEMM of a fixed shape.
class BlockedHead {
 public:
  BlockedHead(const LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight,
              const at::Tensor& targets)
      : hidden_(hidden),
        weight_(weight),
        targets_(simulated(targets) ? nullptr : targets.data_ptr<int32_t>()),
        first_id_(spec.first_id()),
        transform_{static_cast<float>(1.0 / spec.temperature), static_cast<float>(spec.softcap)},
        vocab_(weight.size(0)),
        blocks_((vocab_ + kVocabBlock - 1) / kVocabBlock) {
    require(hidden.size(0) % kRowTile == 0, ErrorCode::kInternal, "[linear_log_prob] expected a multiple of ",
            kRowTile, " rows, got ", hidden.size(0));
  }

  int64_t vocab() const { return vocab_; }
  int64_t blocks() const { return blocks_; }
  int64_t block_begin(int64_t block) const { return block * kVocabBlock; }
  int64_t block_cols(int64_t block) const { return std::min(kVocabBlock, vocab_ - block_begin(block)); }
  at::Tensor block_weight(int64_t block) const {
    return as_operand(weight_.narrow(0, block_begin(block), block_cols(block)));
  }
  at::Tensor rows(int64_t begin, int64_t count) const { return as_operand(hidden_.narrow(0, begin, count)); }
  const kernels::LogitsTransform& transform() const { return transform_; }

  // Runs body(first row, end row, block, packed block of the weight) over all blocks and all rows. A block
  // of the weight serves many row tiles while it is in the cache.
  template <typename Body>
  void for_each_block(Body&& body) const {
    const int64_t total = hidden_.size(0);
    const int64_t parts = (total + kBlockRows - 1) / kBlockRows;
    parallel_items(hidden_.device(), blocks_ * parts, [&](int64_t i) {
      const int64_t begin = i % parts * kBlockRows;
      body(begin, std::min(total, begin + kBlockRows), i / parts,
           ops::PackedMatrix::of(block_weight(i / parts), true, /*parallel=*/false));
    });
  }

  // Logits of rows [row, row + kRowTile) x one block into `logits` (a [kRowTile, cols] view), their
  // statistics and, where the target lies in this block, its logit.
  void forward_block(int64_t row, int64_t block, const ops::PackedMatrix& weight, const at::Tensor& logits,
                     kernels::BlockStats* stats, float* target_logits) const {
    ops::gemm(rows(row, kRowTile), weight, logits, false);
    if (simulated(logits)) return;
    float* data = logits.data_ptr<float>();
    const int64_t ld = logits.stride(0);
    const int64_t cols = block_cols(block);
    kernels::linear_log_prob_kernels().stats(data, kRowTile, cols, ld, transform_, stats);
    for (int64_t r = 0; r < kRowTile; ++r) {
      const int64_t column = target_column(row + r, block);
      if (column >= 0 && column < cols) target_logits[row + r] = data[r * ld + column];
    }
  }

  int64_t target_column(int64_t row, int64_t block) const {
    return targets_[row] - first_id_ - block_begin(block);
  }

 private:
  const at::Tensor& hidden_;
  const at::Tensor& weight_;
  const int32_t* targets_;
  int64_t first_id_;
  kernels::LogitsTransform transform_;
  int64_t vocab_, blocks_;
};

// Statistics of every (row, block): combined in block order, in double, so that the result does not
// depend on which thread did what.
class StatsTable {
 public:
  StatsTable(int64_t rows, int64_t blocks, const at::Device& device)
      : rows_(rows),
        blocks_(blocks),
        stats_(at::empty({blocks, rows, static_cast<int64_t>(sizeof(kernels::BlockStats))},
                         at::TensorOptions(at::kByte).device(device))),
        targets_(at::zeros({rows}, at::TensorOptions(at::kFloat).device(device))) {}

  kernels::BlockStats* at(int64_t row, int64_t block) {
    if (simulated(stats_)) return nullptr;
    return reinterpret_cast<kernels::BlockStats*>(stats_.data_ptr<uint8_t>()) + (block * rows_ + row);
  }
  float* target_logits() { return simulated(targets_) ? nullptr : targets_.data_ptr<float>(); }

  // Rows [begin, begin + rows) of the outputs from this table's rows and those of the other ranks.
  void write(const VocabularyShard* shard, const char* phase, int64_t begin, const LogProbRows& out) {
    const at::Tensor own =
        at::empty({rows_, kernels::RowSums::kCount}, targets_.options().dtype(at::kDouble));
    if (simulated(own))
      return write_rows(shard != nullptr ? shard->gather(own, phase) : own.unsqueeze(0), begin, out);
    auto* const sums = reinterpret_cast<kernels::RowSums*>(own.data_ptr<double>());
    const float* const targets = target_logits();
    for (int64_t r = 0; r < rows_; ++r) {
      sums[r] = kernels::combined(blocks_, [&](int64_t b) {
        const kernels::BlockStats& block = *at(r, b);
        return kernels::RowSums{block.max, block.sum, block.weighted, block.sum_squares, 0};
      });
      sums[r].target = targets[r];
    }
    write_rows(shard != nullptr ? shard->gather(own, phase) : own.unsqueeze(0), begin, out);
  }

 private:
  int64_t rows_, blocks_;
  at::Tensor stats_;    // [blocks, rows] kernels::BlockStats
  at::Tensor targets_;  // [rows] float32
};

// Rows of which all logits exist at a time.
int64_t chunk_rows_of(const LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight) {
  const int64_t affordable =
      kLogitsBudget / static_cast<int64_t>(sizeof(float)) / spec.most_rows(weight) / kRowTile * kRowTile;
  return std::min(hidden.size(0), std::max(kLeastChunkRows, affordable));
}

// Logits of all rows of `chunk` into `buffer` [rows, V], with the bits of any other way.
void chunk_logits(const BlockedHead& chunk, const at::Tensor& buffer, StatsTable& table) {
  chunk.for_each_block([&](int64_t first, int64_t last, int64_t block, const PackedMatrix& block_weight) {
    for (int64_t row = first; row < last; row += kRowTile) {
      const at::Tensor logits =
          buffer.narrow(0, row, kRowTile).narrow(1, chunk.block_begin(block), chunk.block_cols(block));
      chunk.forward_block(row, block, block_weight, logits, table.at(row, block), table.target_logits());
    }
  });
}

// The forward where the likeliest tokens are wanted, too.
void forward_with_top(const LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight,
                      const at::Tensor& targets, const LogProbRows& out) {
  const int64_t total = hidden.size(0);
  const int64_t chunk_rows = chunk_rows_of(spec, hidden, weight);
  const at::Tensor buffer = at::empty({chunk_rows, weight.size(0)}, floats(hidden));
  for (int64_t begin = 0; begin < total; begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, total - begin);
    const at::Tensor rows = as_operand(hidden.narrow(0, begin, count));
    const at::Tensor chunk_targets = targets.narrow(0, begin, count);
    const BlockedHead chunk(spec, rows, weight, chunk_targets);
    StatsTable table(count, chunk.blocks(), hidden.device());
    chunk_logits(chunk, buffer, table);
    table.write(spec.shard, "forward", begin, out);
    write_top_tokens(spec, buffer.narrow(0, 0, count), begin, out);
  }
}

// What a backward pass over a block of logits adds at single tokens: the target, and given ones. The kernel's
// own pass takes the sum of their gradients for what all tokens of the row share, and no target.
class TokenTerms {
 public:
  // `by_log_prob` [n] and `by_given` [n, K] of the chunk's rows.
  TokenTerms(const LogProbSpec& spec, const at::Tensor& targets, const at::Tensor& ids,
             const at::Tensor& by_log_prob, const at::Tensor& by_given)
      : ids_(at::cat({targets.to(at::kInt).unsqueeze(1), ids}, 1)),
        gradients_(at::cat({by_log_prob.unsqueeze(1), by_given}, 1)),
        first_id_(spec.first_id()),
        scale_(static_cast<float>(1.0 / spec.temperature)),
        to_tanh_(spec.softcap > 0 ? static_cast<float>(spec.temperature / spec.softcap) : 0.0F) {}

  at::Tensor sums() const { return gradients_.sum(1); }

  // Of the block of columns [begin, begin + cols): before its logits [rows, cols] become gradients.
  void look(const float* logits, int64_t ld, int64_t begin, int64_t cols) {
    found_.clear();
    const int32_t* const ids = ids_.const_data_ptr<int32_t>();
    const float* const gradients = gradients_.const_data_ptr<float>();
    const int64_t tokens = ids_.size(1);
    for (int64_t i = 0; i < ids_.numel(); ++i) {
      const int64_t column = ids[i] - first_id_ - begin;
      if (column < 0 || column >= cols || gradients[i] == 0) continue;
      const int64_t place = i / tokens * ld + column;
      const float tanh = logits[place] * to_tanh_;
      found_.push_back({place, gradients[i] * scale_ * (1.0F - tanh * tanh)});
    }
  }
  void add(float* gradients) const {
    for (const auto& [place, value] : found_) gradients[place] += value;
  }

 private:
  struct Term {
    int64_t place;
    float value;
  };
  at::Tensor ids_, gradients_;
  int64_t first_id_;
  float scale_, to_tanh_;
  std::vector<Term> found_;
};

// Of the rows of a chunk, float32 [n]: what its forward pass has found, and the gradients of the loss by it.
// entropy, by_entropy: undefined where nothing depends on it.
struct ChunkGradients {
  at::Tensor lse, entropy, by_log_prob, by_entropy;
};

// The logits of one block become the gradients by them. terms: of all tokens that count by themselves; none:
// those are the targets of the chunk.
void logits_to_gradients(const BlockedHead& chunk, int64_t block, const at::Tensor& logits,
                         const ChunkGradients& rows, std::optional<TokenTerms>& terms) {
  const auto from = [](const at::Tensor& values) {
    return values.defined() ? values.data_ptr<float>() : nullptr;
  };
  const int64_t count = logits.size(0), cols = logits.size(1), ld = logits.stride(0);
  std::vector<int64_t> columns(static_cast<size_t>(count), -1);
  if (terms) {
    terms->look(from(logits), ld, chunk.block_begin(block), cols);
  } else {
    for (int64_t r = 0; r < count; ++r) columns[static_cast<size_t>(r)] = chunk.target_column(r, block);
  }
  kernels::linear_log_prob_kernels().backward(from(logits), count, cols, ld, chunk.transform(),
                                              columns.data(), from(rows.lse), from(rows.entropy),
                                              from(rows.by_log_prob), from(rows.by_entropy));
  if (terms) terms->add(from(logits));
}

}  // namespace

void write_rows(const at::Tensor& parts, int64_t begin, const LogProbRows& out) {
  const int64_t rows = parts.size(1);
  const at::Tensor all = at::empty({4, rows}, parts.options());
  const bool there = !simulated(parts);
  const auto* const sums =
      there ? reinterpret_cast<const kernels::RowSums*>(parts.const_data_ptr<double>()) : nullptr;
  double* const values = there ? all.data_ptr<double>() : nullptr;
  for (int64_t r = 0; there && r < rows; ++r) {
    const kernels::RowOutputs row = kernels::outputs_of(
        kernels::combined(parts.size(0), [&](int64_t part) { return sums[part * rows + r]; }));
    values[r] = row.log_prob;
    values[rows + r] = row.lse;
    values[2 * rows + r] = row.entropy;
    values[3 * rows + r] = row.sum_pi_squared;
  }
  const auto copy = [&](const at::Tensor& target, int64_t i) {
    if (target.defined()) target.narrow(0, begin, rows).copy_(all[i]);
  };
  copy(out.log_probs, 0);
  copy(out.lse, 1);
  copy(out.entropy, 2);
  copy(out.sum_pi_squared, 3);
}

void linear_log_prob_forward(const LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& targets, const LogProbRows& out) {
  const Range range("linear_log_prob");
  if (!on_cpu_threads(hidden.device())) {
    const kernels::DeviceOps* device = kernels::device_ops_for(hidden);
    const auto forward =
        device != nullptr ? device->linear_log_prob_forward : linear_log_prob_forward_reference;
    return forward(spec, hidden, weight, targets, out);
  }
  spec.check(hidden, weight, targets, "forward");
  const AllocateFor part(MemoryPart::kHead);
  if (out.top.ids.defined()) return forward_with_top(spec, hidden, weight, targets, out);
  const BlockedHead head(spec, hidden, weight, targets);
  StatsTable table(hidden.size(0), head.blocks(), hidden.device());
  head.for_each_block([&](int64_t begin, int64_t end, int64_t block, const PackedMatrix& block_weight) {
    const at::Tensor logits = at::empty({kRowTile, head.block_cols(block)}, floats(hidden));
    for (int64_t row = begin; row < end; row += kRowTile) {
      head.forward_block(row, block, block_weight, logits, table.at(row, block), table.target_logits());
    }
  });
  table.write(spec.shard, "forward", 0, out);
}

void linear_log_prob_backward(const LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& targets, const LogProbRows& rows, bool entropy_gradient,
                              const RowGradients& gradients, const at::Tensor& d_hidden,
                              const at::Tensor& d_weight) {
  const Range range("linear_log_prob backward");
  if (!on_cpu_threads(hidden.device())) {
    const kernels::DeviceOps* device = kernels::device_ops_for(hidden);
    const auto backward =
        device != nullptr ? device->linear_log_prob_backward : linear_log_prob_backward_reference;
    return backward(spec, hidden, weight, targets, rows, entropy_gradient, gradients, d_hidden, d_weight);
  }
  spec.check(hidden, weight, targets, "backward");
  const AllocateFor part(MemoryPart::kHead);
  const BlockedHead head(spec, hidden, weight, targets);
  const int64_t total = hidden.size(0);
  const int64_t chunk_rows = chunk_rows_of(spec, hidden, weight);
  const int64_t ranges = std::clamp<int64_t>(head.blocks(), 1, at::get_num_threads());
  const at::Tensor logits_buffer = at::empty({chunk_rows, head.vocab()}, floats(hidden));
  const at::Tensor partial = at::empty({ranges, chunk_rows, hidden.size(1)}, floats(hidden));
  const at::Tensor grad_log_probs = at::empty({chunk_rows}, floats(hidden));
  const at::Tensor grad_entropy = entropy_gradient ? at::empty({chunk_rows}, floats(hidden)) : at::Tensor();

  for (int64_t begin = 0; begin < total; begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, total - begin);
    StatsTable table(count, head.blocks(), hidden.device());
    const at::Tensor chunk_targets = targets.narrow(0, begin, count);
    const at::Tensor chunk_hidden = head.rows(begin, count);
    const BlockedHead chunk(spec, chunk_hidden, weight, chunk_targets);
    chunk_logits(chunk, logits_buffer, table);
    table.write(spec.shard, "backward", begin, rows);
    const bool with_given = rows.given.ids.defined();
    if (with_given) write_given_tokens(spec, logits_buffer.narrow(0, 0, count), begin, rows);
    const at::Tensor chunk_grad = grad_log_probs.narrow(0, 0, count);
    const at::Tensor chunk_entropy_grad =
        grad_entropy.defined() ? grad_entropy.narrow(0, 0, count) : grad_entropy;
    const at::Tensor chunk_lse = rows.lse.narrow(0, begin, count);
    const at::Tensor chunk_entropy =
        rows.entropy.defined() ? rows.entropy.narrow(0, begin, count) : at::Tensor();
    gradients(begin, begin + count, chunk_grad, chunk_entropy_grad);
    std::optional<TokenTerms> terms;
    if (with_given && !simulated(chunk_grad)) {
      terms.emplace(spec, chunk_targets, rows.given.ids.narrow(0, begin, count), chunk_grad,
                    rows.given.gradients.narrow(0, begin, count));
      chunk_grad.copy_(terms->sums());
    }

    const ChunkGradients chunk_gradients{chunk_lse, chunk_entropy, chunk_grad, chunk_entropy_grad};
    const PackedMatrix packed_hidden =
        d_weight.defined() ? PackedMatrix::of(chunk_hidden, false) : PackedMatrix();
    parallel_ranges(hidden.device(), head.blocks(), ranges, [&](int64_t range, int64_t first, int64_t last) {
      at::Tensor d_rows = partial.select(0, range).narrow(0, 0, count);
      std::optional<TokenTerms> own_terms = terms;
      for (int64_t block = first; block < last; ++block) {
        const at::Tensor logits =
            logits_buffer.narrow(0, 0, count).narrow(1, head.block_begin(block), head.block_cols(block));
        if (!simulated(logits)) logits_to_gradients(chunk, block, logits, chunk_gradients, own_terms);
        const at::Tensor d_logits = logits.to(chunk_hidden.scalar_type());
        if (d_weight.defined()) {
          gemm_transposed(d_logits, packed_hidden,
                          d_weight.narrow(0, head.block_begin(block), head.block_cols(block)),
                          /*parallel=*/false);
        }
        gemm(d_logits, PackedMatrix::of(head.block_weight(block), false, /*parallel=*/false), d_rows,
             block != first);
      }
    });
    at::Tensor sum = partial.select(0, 0).narrow(0, 0, count);
    if (head.blocks() == 0) sum.zero_();
    for (int64_t range = 1; range < ranges; ++range) sum.add_(partial.select(0, range).narrow(0, 0, count));
    if (spec.shard != nullptr && spec.sum_hidden_gradient) spec.shard->sum(sum);
    d_hidden.narrow(0, begin, count).copy_(sum);
  }
}

}  // namespace troupe::ops
