// The products of attention with bfloat16 keys and values in pages, by the kernels of gemm.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

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
  // out [rows, count * kPagePositions] (row stride ld) = the queries times the keys of these pages.
  void scores(const char* const* pages, int64_t count, float* out, int64_t ld);
  // out [rows, dim] = (add ? out : 0) + weights, rounded, times the values at positions [begin, end); the
  // weight of row r and position begin + i is weights[r * ld + i], page 0 holds positions from 0.
  void values(const float* weights, int64_t ld, const char* const* pages, int64_t begin, int64_t end,
              float* out, bool add);

 private:
  using Word = kernels::Word;

  // At least `count` words, which keep nothing.
  static Word* room(at::Tensor& buffer, int64_t count);
  // `source` [rows, k] as the left operand.
  const Word* left(const at::BFloat16* source, int64_t k, at::Tensor& buffer) const;

  ops::panels::Multiplier multiplier_;
  ops::panels::Multiplier::Use use_;
  int64_t rows_ = 0, dim_ = 0;
  at::Tensor queries_, packed_queries_, key_words_, weights_, packed_weights_, value_words_;
};

}  // namespace troupe
