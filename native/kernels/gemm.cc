// Packing of operands and the loops around the GEMM tiles.
#include "kernels/gemm.h"

#include <ATen/ATen.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>

#include "base/parallel.h"
#include "kernels/cpu/isa.h"
#include "kernels/gemm_multiplier.h"
#include "kernels/gemm_panels.h"

TROUPE_DECLARE_TABLES(GemmKernels, gemm_table)
TROUPE_DECLARE_TABLES(Bfloat16GemmKernels, bfloat16_gemm_table)

TROUPE_DECLARE_TABLES(Bfloat16GemmKernels, amx_gemm_table)

namespace troupe::kernels {
const GemmKernels& gemm_kernels() {
  return TROUPE_PICK_TABLE(gemm_table);
}

namespace {

std::atomic<const Bfloat16GemmKernels*>& selected_bfloat16_kernels() {
  static std::atomic<const Bfloat16GemmKernels*> kernels{
      bfloat16_matrix_kernels() != nullptr ? bfloat16_matrix_kernels() : bfloat16_vector_kernels()};
  return kernels;
}

}  // namespace

const Bfloat16GemmKernels* bfloat16_vector_kernels() {
#if defined(__x86_64__)
  if (best_isa() == Isa::kAvx512 && __builtin_cpu_supports("avx512bf16")) return &avx512::bfloat16_gemm_table;
#endif
  return nullptr;
}

const Bfloat16GemmKernels* bfloat16_matrix_kernels() {
#if defined(__x86_64__) && defined(__linux__)
  static const bool there = [] {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return bfloat16_vector_kernels() != nullptr && __builtin_cpu_supports("amx-bf16") &&
           __builtin_cpu_supports("amx-tile") && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  if (there) return &avx512::amx_gemm_table;
#endif
  return nullptr;
}

const Bfloat16GemmKernels* bfloat16_gemm_kernels() {
  return selected_bfloat16_kernels().load(std::memory_order_relaxed);
}

void select_bfloat16_gemm(const Bfloat16GemmKernels* kernels) {
  selected_bfloat16_kernels().store(kernels, std::memory_order_relaxed);
}
}  // namespace troupe::kernels

namespace troupe::ops {

namespace {

using kernels::bfloat16_gemm_kernels;
using kernels::Word;
using panels::for_each_panel;
using panels::Kernel;
using panels::kGemmCols;
using panels::kGemmLanes;
using panels::Multiplier;
using panels::num_panels;
using panels::padded_cols;
using panels::panel_ranges;
using panels::part_of;
using panels::Source;
using panels::spread_panels;
using panels::tile;
using panels::words;
using panels::words_of;

constexpr int64_t kDepth = 512;     // steps of k per pass: a block of `a` stays in the second-level cache
constexpr int64_t kRowBlock = 128;  // rows of c per unit of work of gemm_transposed
constexpr int64_t kColBlock = 11;   // panels of columns per unit of work of gemm_transposed
constexpr int64_t kPackSteps = 64;  // steps of a weight per unit of packing, where k runs along its rows
constexpr int64_t kPackRows = 8;    // the same where k runs along its columns
constexpr int64_t kLeftWords = int64_t{1} << 17;  // of `a` that all panels of columns go over: 512 KiB

// A packed right operand.
struct Panels {
  const Word* words = nullptr;
  int64_t cols = 0, steps = 0;
};

// What a pass over k reads of one of them.
struct Panel {
  int64_t first = 0, there = 0, width = 0;  // columns
  const Word* words = nullptr;
  int64_t count = 0;
};

// Panel i in the pass over up to `depth` steps from s0 on.
Panel panel_of(const Panels& of, int64_t i, int64_t s0, int64_t depth) {
  const int64_t first = i * kGemmCols, there = std::min(kGemmCols, of.cols - first);
  const int64_t width = padded_cols(there);
  return {first, there, width, of.words + first * of.steps + s0 * width,
          width * std::min(depth, of.steps - s0)};
}

// c = a B (+ addend) in passes over `depth` steps of k. `next`: what is multiplied with behind it, or
// nothing.
template <typename Out>
class Product {
 public:
  // scratch: what scratch_words() says. addend: undefined, c itself, or another matrix.
  Product(const at::Tensor& a, const Panels& b, const Panels& next, int64_t depth, const at::Tensor& c,
          const at::Tensor& addend, const at::Tensor& scratch)
      : multiplier_(a.scalar_type()),
        rows_(a.size(0)),
        k_(a.size(1)),
        depth_(depth),
        source_(a),
        as_it_lies_(multiplier_.reads_rows()),
        a_(words_of(scratch)),
        row_words_(a.stride(0)),
        b_(b),
        next_(next),
        c_(static_cast<Out*>(c.mutable_data_ptr())),
        ldc_(c.stride(0)),
        addend_(addend.defined() ? static_cast<const Out*>(addend.const_data_ptr()) : nullptr),
        addend_ld_(addend.defined() ? addend.stride(0) : 0) {}

  static int64_t scratch_words(const at::Tensor& a) {
    const Multiplier multiplier(a.scalar_type());
    if (multiplier.reads_rows()) return 0;
    return round_up(a.size(0), multiplier.rows()) * multiplier.steps(a.size(1));
  }

  // Outside of a parallel region with columns spread over the threads.
  void run() const {
    const int64_t block = multiplier_.rows(), count = num_panels(b_.cols);
    for (int64_t s0 = 0; s0 < b_.steps && !as_it_lies_; s0 += depth_) {
      const int64_t steps = std::min(depth_, b_.steps - s0);
      for (int64_t r = 0; r < rows_; r += block)
        multiplier_.pack_rows(source_, r, std::min(block, rows_ - r), k_, s0, s0 + steps, left(s0, r));
    }
    spread_panels(count, [&](int64_t begin, int64_t end, int64_t next) {
      const Multiplier::Use use(multiplier_);
      const Panel behind = next < count ? panel(b_, next, 0) : first_panel(next_, next - count);
      for (int64_t s0 = 0; s0 < b_.steps; s0 += depth_)
        pass(s0, begin, end, s0 + depth_ < b_.steps ? panel(b_, begin, s0 + depth_) : behind);
    });
  }

 private:
  Panel panel(const Panels& of, int64_t i, int64_t s0) const { return panel_of(of, i, s0, depth_); }
  Panel first_panel(const Panels& of, int64_t range) const {
    if (of.cols == 0) return {};
    const int64_t count = num_panels(of.cols), ranges = panel_ranges(count);
    return panel(of, count * (range % ranges) / ranges, 0);
  }
  // Block of rows `row` of `a` from step s0 on, packed.
  Word* left(int64_t s0, int64_t row) const {
    return a_ + round_up(rows_, multiplier_.rows()) * s0 + row * std::min(depth_, b_.steps - s0);
  }

  // Steps from s0 on for panels [begin, end). The thread is likely to go on with `behind`.
  void pass(int64_t s0, int64_t begin, int64_t end, const Panel& behind) const {
    const int64_t steps = std::min(depth_, b_.steps - s0), block = multiplier_.rows();
    const int64_t at_once = std::max(block, kLeftWords / steps / block * block);
    kernels::GemmTile<Out> t{.steps = steps, .ldc = ldc_, .addend_ld = s0 > 0 ? ldc_ : addend_ld_};
    if (as_it_lies_) {
      t.a_row = row_words_;
      t.a_step = 1;
    }
    for (int64_t r0 = 0; r0 < rows_; r0 += at_once) {
      const int64_t r1 = std::min(rows_, r0 + at_once), blocks = (r1 - r0 + block - 1) / block;
      const Panel then = r1 < rows_ ? panel(b_, begin, s0) : behind;
      for (int64_t i = begin; i < end; ++i) {
        const Panel own = panel(b_, i, s0);
        const Panel next = i + 1 < end ? panel(b_, i + 1, s0) : then;  // comes from memory meanwhile
        t.b = own.words;
        t.vectors = own.width / kGemmLanes;
        for (int64_t r = r0; r < r1; r += block) {
          t.a = as_it_lies_ ? static_cast<const Word*>(source_.at(r, s0)) : left(s0, r);
          t.c = c_ + r * ldc_ + own.first;
          t.rows = std::min(block, r1 - r);
          t.addend = s0 > 0 ? t.c : addend_ != nullptr ? addend_ + r * addend_ld_ + own.first : nullptr;
          t.ahead = part_of(next.words, next.count, (r - r0) / block, blocks);
          tile(kernel_, t, own.there);
        }
      }
    }
  }

  const Multiplier multiplier_;
  const Kernel<Out> kernel_ = multiplier_.template kernel<Out>();
  const int64_t rows_, k_, depth_;
  const Source source_;
  const bool as_it_lies_;
  Word* const a_;
  const int64_t row_words_;
  const Panels b_, next_;
  Out* const c_;
  const int64_t ldc_;
  const Out* const addend_;
  const int64_t addend_ld_;
};

template <typename Out>
void multiply(const at::Tensor& a, const Panels& b, const Panels& next, int64_t depth, const at::Tensor& c,
              const at::Tensor& addend) {
  const at::Tensor scratch = words(Product<Out>::scratch_words(a), a.device());
  if (!simulated(a)) Product<Out>(a, b, next, depth, c, addend, scratch).run();
}

}  // namespace

PackedMatrix PackedMatrix::quantized(const at::Tensor& weight, Quantization kind) {
  PackedMatrix packed;
  packed.quantized_ = QuantizedMatrix::of(weight, kind);
  packed.rows_ = weight.size(1);
  packed.cols_ = weight.size(0);
  return packed;
}

void PackedMatrix::precede(const PackedMatrix& next) {
  next_panels_ = next.panels_;
  next_rows_ = next.rows_;
  next_cols_ = next.cols_;
}

bool packs(const at::Tensor& matrix) {
  if (simulated(matrix)) {
    return !SimulateGpu::active() &&
           (matrix.scalar_type() == at::kFloat || matrix.scalar_type() == at::kBFloat16);
  }
  static const bool fast = kernels::best_isa() >= kernels::Isa::kAvx2;
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
  const int64_t k = packed.rows_, cols = packed.cols_, steps = Multiplier(matrix.scalar_type()).steps(k);
  packed.panels_ = words(padded_cols(cols) * steps, matrix.device());
  if (simulated(matrix)) return packed;
  Word* target = words_of(packed.panels_);
  const Source source(matrix);
  const auto pack = [&](int64_t panel, int64_t panels, int64_t s0, int64_t s1) {
    for_each_panel(cols, panel, panels, [&](int64_t first, int64_t width, int64_t there) {
      Word* const begin = target + first * steps + s0 * width;
      if (transposed) {
        source.rows(first, there, k, s0, s1, width, begin);
      } else {
        source.columns(first, there, k, s0, s1, width, begin);
      }
    });
  };
  // Along the rows of the matrix: some rows of all columns, or some columns of the rows of a panel.
  const int64_t panels = num_panels(cols), at_once = transposed ? 1 : panels;
  const int64_t slice = transposed ? kPackSteps : kPackRows, slices = (steps + slice - 1) / slice;
  const auto item = [&](int64_t i) {
    const int64_t panel = i / slices * at_once, s0 = i % slices * slice;
    pack(panel, panel + at_once, s0, std::min(steps, s0 + slice));
  };
  const int64_t items = (transposed ? panels : 1) * slices;
  if (parallel) {
    parallel_items(items, item);
  } else {
    for (int64_t i = 0; i < items; ++i) item(i);
  }
  return packed;
}

void gemm(const at::Tensor& a, const PackedMatrix& b, const at::Tensor& c, bool accumulate) {
  gemm_add(a, b, accumulate ? c : at::Tensor(), c);
}

void gemm_add(const at::Tensor& a, const PackedMatrix& b, const at::Tensor& addend, const at::Tensor& c) {
  at::Tensor out = c;
  if (b.quantized_.defined()) {
    if (addend.defined() && !addend.is_same(c)) out.copy_(addend);
    return b.quantized_.multiply(a, c, addend.defined());
  }
  if (b.plain_.defined()) {
    if (addend.defined()) {
      at::addmm_out(out, addend, a, b.plain_);
    } else {
      at::mm_out(out, a, b.plain_);
    }
    return;
  }
  const auto panels_of = [&](const at::Tensor& words, int64_t cols, int64_t k) {
    if (!words.defined() || simulated(words)) return Panels{};
    return Panels{words_of(words), cols, Multiplier(a.scalar_type()).steps(k)};
  };
  const Panels own = panels_of(b.panels_, b.cols_, b.rows_);
  const Panels next = panels_of(b.next_panels_, b.next_cols_, b.next_rows_);
  if (out.scalar_type() == at::kFloat) return multiply<float>(a, own, next, kDepth, out, addend);
  // In one pass over all of k, to be rounded once.
  multiply<uint16_t>(a, own, next, Multiplier(a.scalar_type()).steps(b.rows_), out, addend);
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
  const Multiplier multiplier(a.scalar_type());
  const int64_t rows = a.size(1), ldc = c.stride(0);
  const int64_t steps = multiplier.steps(b.rows_);
  if (simulated(a)) {
    const auto block = [&] { words(kRowBlock * std::min(kDepth, steps), a.device()); };
    return parallel ? simulate_threads((rows + kRowBlock - 1) / kRowBlock, block) : block();
  }
  const int64_t panels = num_panels(b.cols_), at_once = multiplier.rows();
  const int64_t row_blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t col_blocks = (panels + kColBlock - 1) / kColBlock;
  const Source source(a);
  const Panels right{words_of(b.panels_), b.cols_, steps};
  const Kernel<float> kernel = multiplier.kernel<float>();
  float* target = out.data_ptr<float>();
  const auto block = [&](int64_t i) {
    const int64_t begin = i / col_blocks * kRowBlock;
    const int64_t count = std::min(kRowBlock, rows - begin);
    const int64_t panel = i % col_blocks * kColBlock;
    const at::Tensor scratch = words(kRowBlock * std::min(kDepth, steps), at::kCPU);
    Word* packed = words_of(scratch);
    const Multiplier::Use use(multiplier);
    for (int64_t s0 = 0; s0 < steps; s0 += kDepth) {
      const int64_t s1 = std::min(steps, s0 + kDepth), k = s1 - s0;
      for (int64_t r = 0; r < count; r += at_once) {
        multiplier.pack_columns(source, begin + r, std::min(at_once, count - r), b.rows_, s0, s1,
                                packed + r * k);
      }
      for (int64_t p = panel; p < std::min(panels, panel + kColBlock); ++p) {
        const Panel own = panel_of(right, p, s0, kDepth);
        // Comes from memory meanwhile.
        const Panel next = p + 1 < panels ? panel_of(right, p + 1, s0, kDepth) : Panel{};
        for (int64_t r = 0; r < count; r += at_once) {
          float* const c = target + (begin + r) * ldc + own.first;
          tile(kernel,
               {.steps = k,
                .a = packed + r * k,
                .b = own.words,
                .vectors = own.width / kGemmLanes,
                .c = c,
                .ldc = ldc,
                .rows = std::min(at_once, count - r),
                .addend = c,
                .addend_ld = ldc,
                .ahead = part_of(next.words, next.count, r / at_once, (count + at_once - 1) / at_once)},
               own.there);
        }
      }
    }
  };
  if (parallel) {
    parallel_items(row_blocks * col_blocks, block);
  } else {
    for (int64_t i = 0; i < row_blocks * col_blocks; ++i) block(i);
  }
}

}  // namespace troupe::ops
