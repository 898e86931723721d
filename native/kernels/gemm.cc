// Packing of operands and the loops around the GEMM tiles.
#include "kernels/gemm.h"

#include <ATen/ATen.h>

#include <atomic>

#include "base/parallel.h"
#include "kernels/cpu/isa.h"
#include "kernels/gemm_panels.h"

TROUPE_DECLARE_TABLES(GemmKernels, gemm_table)
TROUPE_DECLARE_TABLES(Bfloat16GemmKernels, bfloat16_gemm_table)

namespace troupe::kernels {
const GemmKernels& gemm_kernels() {
  return TROUPE_PICK_TABLE(gemm_table);
}

namespace {

#if defined(__x86_64__)
bool has_bfloat16_products() {
  return best_isa() == Isa::kAvx512 && __builtin_cpu_supports("avx512bf16");
}
bool has_matrix_units() {
  return __builtin_cpu_supports("amx-bf16");
}
#endif

std::atomic<const Bfloat16GemmKernels*>& bfloat16_kernels() {
#if defined(__x86_64__)
  static std::atomic<const Bfloat16GemmKernels*> kernels{
      has_bfloat16_products() && !has_matrix_units() ? &avx512::bfloat16_gemm_table : nullptr};
#else
  static std::atomic<const Bfloat16GemmKernels*> kernels{nullptr};
#endif
  return kernels;
}

}  // namespace

const Bfloat16GemmKernels* bfloat16_gemm_kernels() {
  return bfloat16_kernels().load(std::memory_order_relaxed);
}

const Bfloat16GemmKernels* own_bfloat16_products() {
#if defined(__x86_64__)
  return has_bfloat16_products() ? &avx512::bfloat16_gemm_table : nullptr;
#else
  return nullptr;
#endif
}

bool select_bfloat16_gemm(bool own) {
#if defined(__x86_64__)
  bfloat16_kernels().store(own && has_bfloat16_products() ? &avx512::bfloat16_gemm_table : nullptr,
                           std::memory_order_relaxed);
#endif
  return bfloat16_gemm_kernels() != nullptr;
}
}  // namespace troupe::kernels

namespace troupe::ops {

namespace {

using kernels::bfloat16_gemm_kernels;
using kernels::gemm_kernels;
using kernels::kGemmRows;
using kernels::Word;
using panels::for_each_panel;
using panels::Kernel;
using panels::num_panels;
using panels::padded_cols;
using panels::Source;
using panels::spread_panels;
using panels::tile;
using panels::words;
using panels::words_of;

constexpr int64_t kDepth = 512;     // steps of k per pass: a block of `a` stays in the second-level cache
constexpr int64_t kRowBlock = 128;  // rows of c per unit of work of gemm_transposed
constexpr int64_t kColBlock = 11;   // panels of columns per unit of work of gemm_transposed
constexpr int64_t kPackSteps = 64;  // steps of a weight per unit of packing

// The kernel for operands of this dtype that leaves its sums in float32.
Kernel<float> float_kernel(const at::Tensor& operand) {
  if (simulated(operand)) return nullptr;
  return operand.scalar_type() == at::kFloat ? gemm_kernels().tile : bfloat16_gemm_kernels()->tile;
}

// c = a B (+ c) in passes over `depth` steps of k, outside of a parallel region with columns spread over the
// threads.
template <typename Out>
void multiply(Kernel<Out> kernel, const at::Tensor& a, const Word* panels, int64_t cols, int64_t depth,
              Out* c, int64_t ldc, bool accumulate) {
  const int64_t rows = a.size(0);
  const int64_t steps = Source::steps(a, a.size(1));
  const at::Tensor scratch = words(round_up(rows, kGemmRows) * std::min(depth, steps), a.device());
  if (simulated(a)) return;
  Word* packed = words_of(scratch);
  const Source source(a);
  for (int64_t s0 = 0; s0 < steps; s0 += depth) {
    const int64_t count = std::min(depth, steps - s0);
    for (int64_t r = 0; r < rows; r += kGemmRows) {
      source.rows(r, std::min(kGemmRows, rows - r), a.size(1), s0, s0 + count, kGemmRows, packed + r * count);
    }
    const bool add = accumulate || s0 > 0;
    const auto columns = [&](int64_t begin, int64_t end) {
      for_each_panel(cols, begin, end, [&](int64_t first, int64_t width, int64_t there) {
        const Word* panel = panels + first * steps + s0 * width;
        for (int64_t r = 0; r < rows; r += kGemmRows) {
          tile(kernel, count, packed + r * count, panel, width, there, c + r * ldc + first, ldc,
               std::min(kGemmRows, rows - r), add);
        }
      });
    };
    spread_panels(num_panels(cols), columns);
  }
}

}  // namespace

PackedMatrix PackedMatrix::quantized(const at::Tensor& weight, Quantization kind) {
  PackedMatrix packed;
  packed.quantized_ = QuantizedMatrix::of(weight, kind);
  packed.rows_ = weight.size(1);
  packed.cols_ = weight.size(0);
  return packed;
}

bool packs(const at::Tensor& matrix) {
  if (simulated(matrix)) {
    return !SimulateGpu::active() &&
           (matrix.scalar_type() == at::kFloat || matrix.scalar_type() == at::kBFloat16);
  }
  static const bool fast = kernels::best_isa() == kernels::Isa::kAvx512;
  if (!fast || !matrix.is_cpu()) return false;
  return matrix.scalar_type() == at::kFloat ||
         (matrix.scalar_type() == at::kBFloat16 && bfloat16_gemm_kernels() != nullptr);
}

PackedMatrix PackedMatrix::as_it_lies(const at::Tensor& matrix, bool transposed) {
  PackedMatrix plain;
  plain.plain_ = transposed ? matrix.t() : matrix;
  plain.rows_ = plain.plain_.size(0);
  plain.cols_ = plain.plain_.size(1);
  return plain;
}

PackedMatrix PackedMatrix::of(const at::Tensor& matrix, bool transposed, bool parallel) {
  if (!packs(matrix)) return as_it_lies(matrix, transposed);
  PackedMatrix packed;
  packed.rows_ = matrix.size(transposed ? 1 : 0);
  packed.cols_ = matrix.size(transposed ? 0 : 1);
  const int64_t k = packed.rows_, cols = packed.cols_, steps = Source::steps(matrix, k);
  packed.panels_ = words(padded_cols(cols) * steps, matrix.device());
  if (simulated(matrix)) return packed;
  Word* target = words_of(packed.panels_);
  const Source source(matrix);
  const auto pack = [&](int64_t panel, int64_t s0, int64_t s1) {
    for_each_panel(cols, panel, panel + 1, [&](int64_t first, int64_t width, int64_t there) {
      Word* const begin = target + first * steps + s0 * width;
      if (transposed) {
        source.rows(first, there, k, s0, s1, width, begin);
      } else {
        source.columns(first, there, k, s0, s1, width, begin);
      }
    });
  };
  if (parallel) {
    const int64_t slices = (steps + kPackSteps - 1) / kPackSteps;
    parallel_items(num_panels(cols) * slices, [&](int64_t i) {
      const int64_t s0 = i % slices * kPackSteps;
      pack(i / slices, s0, std::min(steps, s0 + kPackSteps));
    });
  } else {
    for (int64_t panel = 0; panel < num_panels(cols); ++panel) pack(panel, 0, steps);
  }
  return packed;
}

void gemm(const at::Tensor& a, const PackedMatrix& b, const at::Tensor& c, bool accumulate) {
  if (b.quantized_.defined()) return b.quantized_.multiply(a, c, accumulate);
  at::Tensor out = c;
  if (b.plain_.defined()) {
    if (accumulate) {
      at::addmm_out(out, out, a, b.plain_);
    } else {
      at::mm_out(out, a, b.plain_);
    }
    return;
  }
  const Word* panels = simulated(a) ? nullptr : words_of(b.panels_);
  if (out.scalar_type() == at::kFloat) {
    float* const target = simulated(a) ? nullptr : out.data_ptr<float>();
    return multiply(float_kernel(a), a, panels, b.cols_, kDepth, target, out.stride(0), accumulate);
  }
  // In one pass over all of k, to be rounded once.
  const Kernel<uint16_t> round = simulated(a) ? nullptr : bfloat16_gemm_kernels()->round;
  multiply(round, a, panels, b.cols_, Source::steps(a, b.rows_),
           simulated(a) ? nullptr : reinterpret_cast<uint16_t*>(out.data_ptr<at::BFloat16>()), out.stride(0),
           accumulate);
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
  const int64_t rows = a.size(1), ldc = c.stride(0);
  const int64_t steps = Source::steps(a, b.rows_);
  if (simulated(a)) {
    const auto block = [&] { words(kRowBlock * std::min(kDepth, steps), a.device()); };
    return parallel ? simulate_threads((rows + kRowBlock - 1) / kRowBlock, block) : block();
  }
  const int64_t panels = num_panels(b.cols_);
  const int64_t row_blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t col_blocks = (panels + kColBlock - 1) / kColBlock;
  const Source source(a);
  const Word* packed_b = words_of(b.panels_);
  const Kernel<float> kernel = float_kernel(a);
  float* target = out.data_ptr<float>();
  const auto block = [&](int64_t i) {
    const int64_t begin = i / col_blocks * kRowBlock;
    const int64_t count = std::min(kRowBlock, rows - begin);
    const int64_t panel = i % col_blocks * kColBlock;
    const at::Tensor scratch = words(kRowBlock * std::min(kDepth, steps), at::kCPU);
    Word* packed = words_of(scratch);
    for (int64_t s0 = 0; s0 < steps; s0 += kDepth) {
      const int64_t s1 = std::min(steps, s0 + kDepth), k = s1 - s0;
      for (int64_t r = 0; r < count; r += kGemmRows) {
        source.columns(begin + r, std::min(kGemmRows, count - r), b.rows_, s0, s1, kGemmRows, packed + r * k);
      }
      for_each_panel(b.cols_, panel, std::min(panels, panel + kColBlock),
                     [&](int64_t first, int64_t width, int64_t there) {
                       const Word* values = packed_b + first * steps + s0 * width;
                       for (int64_t r = 0; r < count; r += kGemmRows) {
                         tile(kernel, k, packed + r * k, values, width, there,
                              target + (begin + r) * ldc + first, ldc, std::min(kGemmRows, count - r), true);
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
