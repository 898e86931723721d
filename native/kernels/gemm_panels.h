// Panels of packed operands: what gemm.cc and quantized_matrix.cc have in common.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "kernels/cpu/gemm_kernels.h"

namespace troupe::ops::panels {

using kernels::kGemmCols;
using kernels::kGemmLanes;
using kernels::kGemmRows;
using kernels::kMostGemmRows;
using kernels::Word;

// A matrix in memory as words of successive steps of k, whichever way k runs.
class Source {
 public:
  explicit Source(const at::Tensor& matrix)
      : data_(static_cast<const char*>(matrix.const_data_ptr())),
        bfloat16_(matrix.scalar_type() == at::kBFloat16),
        value_bytes_(matrix.element_size()),
        row_bytes_(matrix.stride(0) * value_bytes_) {}
  // Rows of `cols` bfloat16, one behind the other.
  Source(const at::BFloat16* data, int64_t cols)
      : data_(reinterpret_cast<const char*>(data)),
        bfloat16_(true),
        value_bytes_(sizeof(at::BFloat16)),
        row_bytes_(cols * value_bytes_) {}

  static int64_t steps(const at::Tensor& matrix, int64_t k) {
    return matrix.scalar_type() == at::kBFloat16 ? (k + 1) / 2 : k;
  }

  // Steps [s0, s1) of k, which runs along the rows and ends at `depth`, of `rows` <= width rows from `first`
  // on: target[(s - s0) * width + r], zeros in place of missing rows and steps. width is a multiple of
  // kGemmRows.
  void rows(int64_t first, int64_t rows, int64_t depth, int64_t s0, int64_t s1, int64_t width,
            Word* target) const {
    const int64_t whole = bfloat16_ ? std::clamp(depth / 2, s0, s1) : s1;
    const bool half = bfloat16_ && depth % 2 != 0 && whole == depth / 2;
    for (int64_t r = 0; r < width; r += kGemmRows) {
      const char* from = data_ + (first + r) * row_bytes_;
      const int64_t there = std::clamp<int64_t>(rows - r, 0, kGemmRows);
      kernels::gemm_kernels().transpose(from + s0 * int64_t{sizeof(Word)}, row_bytes_, there, whole - s0,
                                        target + r, width);
      for (int64_t s = whole; s < s1; ++s) {
        for (int64_t i = 0; i < kGemmRows; ++i) {
          target[(s - s0) * width + r + i] =
              half && s == whole && i < there ? *values(first + r + i, depth - 1) : 0;
        }
      }
    }
  }

  // The same where k runs along the columns: `cols` <= width columns from `first` on.
  void columns(int64_t first, int64_t cols, int64_t depth, int64_t s0, int64_t s1, int64_t width,
               Word* target) const {
    int64_t s = s0;
    if (bfloat16_) {
      s = std::clamp(depth / 2, s0, s1);
      kernels::gemm_kernels().interleave(address(2 * s0, first), row_bytes_, cols, s - s0, target, width);
    }
    for (; s < s1; ++s) {
      Word* const words = target + (s - s0) * width;
      if (!bfloat16_) {
        copy(floats(s, first), cols, words);
      } else {
        for (int64_t c = 0; c < cols; ++c) words[c] = 2 * s < depth ? values(2 * s, first)[c] : 0;
      }
    }
    for (int64_t i = 0; cols < width && i < s1 - s0; ++i)
      std::fill(target + i * width + cols, target + (i + 1) * width, Word{0});
  }

  const void* at(int64_t row, int64_t column) const { return address(row, column); }
  int64_t row_bytes() const { return row_bytes_; }

 private:
  typedef uint16_t Value __attribute__((may_alias));
  static constexpr int64_t kChunk = 8;  // of a known size: a call of memcpy would cost more

  const char* address(int64_t row, int64_t column) const {
    return data_ + row * row_bytes_ + column * value_bytes_;
  }
  const Word* floats(int64_t row, int64_t column) const {
    return reinterpret_cast<const Word*>(address(row, column));
  }
  const Value* values(int64_t row, int64_t column) const {
    return reinterpret_cast<const Value*>(address(row, column));
  }

  static void copy(const Word* source, int64_t count, Word* target) {
    int64_t i = 0;
    for (; i + kChunk <= count; i += kChunk) std::memcpy(target + i, source + i, kChunk * sizeof(Word));
    for (; i < count; ++i) target[i] = source[i];
  }

  const char* data_;
  bool bfloat16_;
  int64_t value_bytes_, row_bytes_;
};

inline int64_t padded_cols(int64_t cols) {
  return round_up(cols, kGemmLanes);
}

// Runs body(first column, width, columns that are there) for every panel in [begin, end).
template <typename Body>
void for_each_panel(int64_t cols, int64_t begin, int64_t end, Body&& body) {
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first = panel * kGemmCols;
    const int64_t there = std::min(kGemmCols, cols - first);
    body(first, padded_cols(there), there);
  }
}

inline int64_t num_panels(int64_t cols) {
  return (cols + kGemmCols - 1) / kGemmCols;
}

template <typename Out>
using Kernel = void (*)(const kernels::GemmTile<Out>& t);

// A tile through the kernel, `there` of its columns; a panel that is not full goes through a buffer.
template <typename Out>
void tile(Kernel<Out> kernel, const kernels::GemmTile<Out>& t, int64_t there) {
  const int64_t width = t.vectors * kGemmLanes;
  if (there == width) return kernel(t);
  Out buffer[kMostGemmRows * kGemmCols];
  for (int64_t r = 0; t.addend != nullptr && r < t.rows; ++r) {
    std::copy_n(t.addend + r * t.addend_ld, there, buffer + r * width);
    std::fill(buffer + r * width + there, buffer + (r + 1) * width, Out(0));
  }
  kernels::GemmTile<Out> whole = t;
  whole.c = buffer;
  whole.ldc = width;
  if (t.addend != nullptr) whole.addend = buffer;
  whole.addend_ld = width;
  kernel(whole);
  for (int64_t r = 0; r < t.rows; ++r) std::copy_n(buffer + r * width, there, t.c + r * t.ldc);
}

// Part `i` of `parts` of the `words` that begin there.
inline kernels::Ahead part_of(const Word* begin, int64_t words, int64_t i, int64_t parts) {
  const int64_t lines = words * int64_t{sizeof(Word)} / kernels::kLineBytes;
  const int64_t first = lines * i / parts, end = lines * (i + 1) / parts;
  return {reinterpret_cast<const char*>(begin) + first * kernels::kLineBytes, end - first};
}

inline at::Tensor words(int64_t count, const at::Device& device) {
  return at::empty({count}, at::TensorOptions(at::kInt).device(device));
}

inline Word* words_of(const at::Tensor& scratch) {
  return reinterpret_cast<Word*>(scratch.data_ptr<int32_t>());
}

// In how many ranges spread_panels() hands them out.
inline int64_t panel_ranges(int64_t count) {
  constexpr int64_t kRangesPerThread = 4;
  return std::min<int64_t>(count, kRangesPerThread * at::get_num_threads());
}

// Runs columns(first panel, end, next) for all panels: outside of a parallel region in ranges that threads
// take as they become free, so that one is likely to go on with panel `next`, or, from `count` on, with range
// next - count of the next matrix.
template <typename Columns>
void spread_panels(int64_t count, Columns&& columns) {
  const int64_t threads = at::get_num_threads();
  if (omp_in_parallel() || threads == 1) return columns(int64_t{0}, count, count);
  const int64_t ranges = panel_ranges(count);
  parallel_ranges(count, ranges, [&](int64_t range, int64_t begin, int64_t end) {
    const int64_t next = range + threads;
    columns(begin, end, next < ranges ? count * next / ranges : count + next - ranges);
  });
}

}  // namespace troupe::ops::panels
