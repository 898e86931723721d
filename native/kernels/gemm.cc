#include "kernels/gemm.h"

#include <ATen/ATen.h>

#include "core/parallel.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/isa.h"

TROUPE_DECLARE_TABLES(GemmKernels, gemm_table)

namespace troupe::kernels {
const GemmKernels& gemm_kernels() {
  return TROUPE_PICK_TABLE(gemm_table);
}
}  // namespace troupe::kernels

namespace troupe::ops {

namespace {

using kernels::gemm_kernels;
using kernels::kGemmCols;
using kernels::kGemmLanes;
using kernels::kGemmRows;

constexpr int64_t kDepth = 512;     // steps of k per pass: a block of `a` stays in the second-level cache
constexpr int64_t kRowBlock = 128;  // rows of c per unit of work of gemm_transposed
constexpr int64_t kColBlock = 11;   // panels of columns per unit of work of gemm_transposed
constexpr int64_t kPackRows = 64;   // rows of a weight per unit of packing
constexpr int64_t kRangesPerThread = 4;  // of columns, in gemm

// `count` values and zeros up to `width`. Whole vectors are copied by code of a known size: a call would cost
// more.
inline void copy_padded(const float* source, int64_t count, int64_t width, float* target) {
  int64_t i = 0;
  for (; i + kGemmRows <= count; i += kGemmRows) {
    std::memcpy(target + i, source + i, kGemmRows * sizeof(float));
  }
  for (; i < count; ++i) target[i] = source[i];
  for (; i < width; ++i) target[i] = 0;
}

// Rows [k0, k1) of one panel, of whose `width` columns `cols` are there.
void pack_panel(const float* source, int64_t ld, bool transposed, int64_t cols, int64_t width, int64_t k0,
                int64_t k1, float* panel) {
  if (!transposed) {
    for (int64_t k = k0; k < k1; ++k) {
      copy_padded(source + k * ld, cols, width, panel + k * width);
    }
    return;
  }
  for (int64_t k = k0; k < k1; ++k) {
    for (int64_t c = 0; c < cols; ++c) panel[k * width + c] = source[c * ld + k];
    std::fill_n(panel + k * width + cols, width - cols, 0.0f);
  }
}

int64_t padded_cols(int64_t cols) {
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

// One tile of c through the kernel; a panel that is not full goes through a buffer.
void tile(int64_t k, const float* a, const float* b, int64_t width, int64_t there, float* c, int64_t ldc,
          int64_t rows, bool add) {
  if (there == width) {
    gemm_kernels().tile(k, a, b, width / kGemmLanes, c, ldc, rows, add);
    return;
  }
  float buffer[kGemmRows * kGemmCols] = {};
  if (add) {
    for (int64_t r = 0; r < rows; ++r) std::copy_n(c + r * ldc, there, buffer + r * width);
  }
  gemm_kernels().tile(k, a, b, width / kGemmLanes, buffer, width, rows, add);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(buffer + r * width, there, c + r * ldc);
}

int64_t num_panels(int64_t cols) {
  return (cols + kGemmCols - 1) / kGemmCols;
}

}  // namespace

bool packs(const at::Tensor& matrix) {
  static const bool fast = kernels::best_isa() == kernels::Isa::kAvx512;
  return fast && matrix.is_cpu() && matrix.scalar_type() == at::kFloat;
}

PackedMatrix PackedMatrix::of(const at::Tensor& matrix, bool transposed, bool parallel) {
  PackedMatrix packed;
  packed.rows_ = matrix.size(transposed ? 1 : 0);
  packed.cols_ = matrix.size(transposed ? 0 : 1);
  if (!packs(matrix)) {
    packed.plain_ = transposed ? matrix.t() : matrix;
    return packed;
  }
  const int64_t k = packed.rows_, cols = packed.cols_, ld = matrix.stride(0);
  packed.panels_ = at::empty({padded_cols(cols), k}, at::kFloat);
  const float* source = matrix.const_data_ptr<float>();
  float* target = packed.panels_.data_ptr<float>();
  const int64_t slices = (k + kPackRows - 1) / kPackRows;
  const auto pack = [&](int64_t panel, int64_t k0, int64_t k1) {
    for_each_panel(cols, panel, panel + 1, [&](int64_t first, int64_t width, int64_t there) {
      pack_panel(source + (transposed ? first * ld : first), ld, transposed, there, width, k0, k1,
                 target + first * k);
    });
  };
  if (parallel) {
    parallel_items(num_panels(cols) * slices, [&](int64_t i) {
      const int64_t k0 = i % slices * kPackRows;
      pack(i / slices, k0, std::min(k, k0 + kPackRows));
    });
  } else {
    for (int64_t panel = 0; panel < num_panels(cols); ++panel) pack(panel, 0, k);
  }
  return packed;
}

void gemm(const at::Tensor& a, const PackedMatrix& b, const at::Tensor& c, bool accumulate) {
  at::Tensor out = c;
  if (b.plain_.defined()) {
    if (accumulate) {
      at::addmm_out(out, out, a, b.plain_);
    } else {
      at::mm_out(out, a, b.plain_);
    }
    return;
  }
  const int64_t rows = a.size(0), lda = a.stride(0), ldc = c.stride(0);
  const int64_t padded = round_up(rows, kGemmRows);
  const int64_t depth = std::min(kDepth, b.rows_);
  const at::Tensor scratch = at::empty({padded, depth}, at::kFloat);
  float* packed = scratch.data_ptr<float>();
  const float* source = a.const_data_ptr<float>();
  const float* panels = b.panels_.const_data_ptr<float>();
  float* target = out.data_ptr<float>();
  for (int64_t k0 = 0; k0 < b.rows_; k0 += kDepth) {
    const int64_t k = std::min(kDepth, b.rows_ - k0);
    for (int64_t r = 0; r < rows; r += kGemmRows) {
      gemm_kernels().pack_rows(source + r * lda + k0, lda, std::min(kGemmRows, rows - r), k, packed + r * k);
    }
    const bool add = accumulate || k0 > 0;
    const auto columns = [&](int64_t begin, int64_t end) {
      for_each_panel(b.cols_, begin, end, [&](int64_t first, int64_t width, int64_t there) {
        const float* panel = panels + first * b.rows_ + k0 * width;
        for (int64_t r = 0; r < rows; r += kGemmRows) {
          tile(k, packed + r * k, panel, width, there, target + r * ldc + first, ldc,
               std::min(kGemmRows, rows - r), add);
        }
      });
    };
    const int64_t count = num_panels(b.cols_);
    if (omp_in_parallel() || at::get_num_threads() == 1) {
      columns(0, count);
    } else {
      const int64_t ranges = std::min<int64_t>(count, kRangesPerThread * at::get_num_threads());
      parallel_ranges(count, ranges, [&](int64_t, int64_t begin, int64_t end) { columns(begin, end); });
    }
  }
}

void gemm_transposed(const at::Tensor& a, const PackedMatrix& b, const at::Tensor& c, bool parallel) {
  at::Tensor out = c;
  if (b.plain_.defined()) {
    if (out.scalar_type() == a.scalar_type()) {
      at::addmm_out(out, out, a.t(), b.plain_);
    } else {
      out.add_(at::mm(a.t(), b.plain_));
    }
    return;
  }
  const int64_t rows = a.size(1), lda = a.stride(0), ldc = c.stride(0);
  const int64_t panels = num_panels(b.cols_);
  const int64_t row_blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t col_blocks = (panels + kColBlock - 1) / kColBlock;
  const float* source = a.const_data_ptr<float>();
  const float* packed_b = b.panels_.const_data_ptr<float>();
  float* target = out.data_ptr<float>();
  const auto block = [&](int64_t i) {
    const int64_t begin = i / col_blocks * kRowBlock;
    const int64_t count = std::min(kRowBlock, rows - begin);
    const int64_t panel = i % col_blocks * kColBlock;
    const at::Tensor scratch = at::empty({kRowBlock, std::min(kDepth, b.rows_)}, at::kFloat);
    float* packed = scratch.data_ptr<float>();
    for (int64_t k0 = 0; k0 < b.rows_; k0 += kDepth) {
      const int64_t k = std::min(kDepth, b.rows_ - k0);
      for (int64_t step = 0; step < k; ++step) {
        const float* row = source + (k0 + step) * lda + begin;
        for (int64_t r = 0; r < count; r += kGemmRows) {
          copy_padded(row + r, std::min(kGemmRows, count - r), kGemmRows, packed + r * k + step * kGemmRows);
        }
      }
      for_each_panel(b.cols_, panel, std::min(panels, panel + kColBlock),
                     [&](int64_t first, int64_t width, int64_t there) {
                       const float* values = packed_b + first * b.rows_ + k0 * width;
                       for (int64_t r = 0; r < count; r += kGemmRows) {
                         tile(k, packed + r * k, values, width, there, target + (begin + r) * ldc + first,
                              ldc, std::min(kGemmRows, count - r), true);
                       }
                     });
    }
  };
  if (parallel) {
    parallel_items(row_blocks * col_blocks, block);
  } else {
    for (int64_t i = 0; i < row_blocks * col_blocks; ++i) block(i);
  }
}

}  // namespace troupe::ops
