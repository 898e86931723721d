// The products of attention with bfloat16 keys and values in pages, by the kernels of gemm.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/gemm_multiplier.h"

namespace troupe {

// One thread's. Sums have the bits of ops::gemm with the same operands: see [Note: operands of attention] in
// kernels/attention_blocks.h. Pages: from where this layer's and head's keys begin
// (kernels/paged_attention.h).
class PageProducts {
 public:
  // Where products of bfloat16 are our own.
  static bool available();

  PageProducts() : multiplier_(at::kBFloat16), use_(multiplier_) {}

  // The queries of the products that follow: fill(at::BFloat16* target) writes them, [rows, dim].
  template <typename Fill>
  void take_queries(int64_t rows, int64_t dim, Fill&& fill) {
    rows_ = rows;
    dim_ = dim;
    auto* const target = reinterpret_cast<at::BFloat16*>(room(queries_, (rows * dim + 1) / 2));
    fill(target);
    left(target, dim, packed_queries_);
  }
  // The pages of one sequence, page i of positions from i * kPagePositions. Those before `kept` will be read
  // again by the next queries of this thread: they stay in the form of the products, as far as there is room.
  // Positions from `written` on hold nothing. keys_hold_values: see KvCache.
  struct Pages {
    const char* const* at;
    int64_t kept, written;
    bool keys_hold_values;
  };

  // out [rows, (end - begin) * kPagePositions] (row stride ld) = the queries times the keys of pages [begin,
  // end).
  void scores(const Pages& pages, int64_t begin, int64_t end, float* out, int64_t ld);
  // out [rows, dim] = (add ? out : 0) + weights, rounded, times the values at positions [begin, end); the
  // weight of row r and position begin + i is weights[r * ld + i].
  void values(const float* weights, int64_t ld, const Pages& pages, int64_t begin, int64_t end, float* out,
              bool add);

 private:
  using Word = kernels::Word;

  // What a place of a buffer holds.
  struct Content {
    const char* page = nullptr;
    int64_t positions = 0;
    bool operator==(const Content&) const = default;
  };

  // At least `count` words, which keep nothing.
  static Word* room(at::Tensor& buffer, int64_t count);
  // `source` [rows, k] as the left operand.
  const Word* left(const at::BFloat16* source, int64_t k, at::Tensor& buffer) const;
  // weights [rows, count] (row stride ld), rounded, as the left operand.
  const Word* left(const float* weights, int64_t ld, int64_t count);
  // Makes room for kept pages of this width, which forgets those that are there.
  void keep(int64_t dim);
  const Word* keys_of(const Pages& pages, int64_t page);
  // Of values: `steps` steps from panel to panel.
  struct Values {
    const Word* at;
    int64_t steps;
  };
  // Values at positions [begin, end).
  Values values_of(const Pages& pages, int64_t begin, int64_t end, int64_t steps);

  ops::panels::Multiplier multiplier_;
  ops::panels::Multiplier::Use use_;
  int64_t rows_ = 0, dim_ = 0;
  at::Tensor queries_, packed_queries_, key_words_, weights_, packed_weights_, value_words_;
  int64_t kept_dim_ = 0;
  at::Tensor kept_keys_, kept_values_;
  std::vector<Content> key_contents_, value_contents_;
};

}  // namespace troupe
