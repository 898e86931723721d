// Codes from weights, and products with them.
#include "kernels/quantized_matrix.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "kernels/cpu/code_gemm_kernels.h"
#include "kernels/cpu/isa.h"
#include "kernels/gemm_panels.h"

TROUPE_DECLARE_TABLES(CodeGemmKernels, code_gemm_table)
TROUPE_DECLARE_TABLES(CodeGemmKernels, vbmi_code_gemm_table)
TROUPE_DECLARE_TABLES(ScaleKernels, scale_table)

namespace troupe::kernels {
std::vector<const CodeGemmKernels*> all_code_gemm_kernels() {
  std::vector<const CodeGemmKernels*> kernels;
#if defined(__x86_64__)
  if (best_isa() == Isa::kAvx512) kernels.push_back(&avx512::code_gemm_table);
  if (best_isa() == Isa::kAvx512 && __builtin_cpu_supports("avx512vbmi"))
    kernels.push_back(&avx512::vbmi_code_gemm_table);
#endif
  return kernels;
}

const CodeGemmKernels& code_gemm_kernels() {
  static const CodeGemmKernels& best = *all_code_gemm_kernels().back();
  return best;
}

const ScaleKernels& scale_kernels() {
  return TROUPE_PICK_TABLE(scale_table);
}
}  // namespace troupe::kernels

namespace troupe::ops {

namespace {

using kernels::CodeTable;
using kernels::kCodeBytes;
using kernels::kCodeRows;
using kernels::kCodeSteps;
using kernels::kGemmCols;
using kernels::kGemmLanes;
using kernels::kGemmRows;
using kernels::Word;

constexpr double kLargestInt8 = 127, kLargestFp8 = 448;
constexpr int64_t kGroupsAtOnce = 32;  // of kCodeSteps of k: their words stay in the first-level cache
constexpr int64_t kFloatsAtOnce = int64_t{4} << 20;  // of a weight that is being quantised

at::ScalarType code_type(Quantization kind) {
  return kind == Quantization::kInt8 ? at::kChar : at::kFloat8_e4m3fn;
}

// What the 128 magnitudes stand for.
CodeTable table_of(Quantization kind) {
  CodeTable table{};
  for (int code = 0; code < 128; ++code) {
    const float value = kind == Quantization::kInt8
                            ? static_cast<float>(code)
                            : static_cast<float>(c10::Float8_e4m3fn(static_cast<uint8_t>(code),
                                                                    c10::Float8_e4m3fn::from_bits()));
    const auto index = static_cast<size_t>(code);
    table.values[index] = c10::BFloat16(value).x;
    table.low[index] = static_cast<uint8_t>(table.values[index] & 0xff);
    table.high[index] = static_cast<uint8_t>(table.values[index] >> 8);
  }
  return table;
}

const CodeTable& table(Quantization kind) {
  static const CodeTable int8 = table_of(Quantization::kInt8), fp8 = table_of(Quantization::kFp8);
  return kind == Quantization::kInt8 ? int8 : fp8;
}

int64_t groups_of(int64_t depth) {
  return (depth + kCodeSteps - 1) / kCodeSteps;
}

// codes [N, K] and scales [N, 1], a few rows at a time.
void quantize(const at::Tensor& weight, Quantization kind, const at::Tensor& codes,
              const at::Tensor& scales) {
  const double largest = kind == Quantization::kInt8 ? kLargestInt8 : kLargestFp8;
  const int64_t rows = weight.size(0), at_once = std::max<int64_t>(1, kFloatsAtOnce / weight.size(1));
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    const int64_t count = std::min(at_once, rows - begin);
    const at::Tensor values = weight.narrow(0, begin, count).to(at::kFloat);
    const at::Tensor most = values.abs().amax(1, /*keepdim=*/true);
    // A row of zeros has codes of zero with any scale.
    const at::Tensor scale = at::where(most == 0, at::ones_like(most), most / largest);
    at::Tensor scaled = (values / scale).clamp_(-largest, largest);
    if (kind == Quantization::kInt8) scaled.round_();
    codes.narrow(0, begin, count).copy_(scaled);
    scales.narrow(0, begin, count).copy_(scale);
  }
}

// Codes [N, K] into panels of kGemmCols columns, as kernels/cpu/code_gemm_kernels.h has them.
void fill_panels(Quantization kind, const at::Tensor& codes, const at::Tensor& panels) {
  const int64_t cols = codes.size(0), depth = codes.size(1), groups = groups_of(depth);
  const auto* source = static_cast<const uint8_t*>(codes.const_data_ptr());
  uint8_t* target = panels.mutable_data_ptr<uint8_t>();
  const auto signed_code = [&](uint8_t code) -> uint8_t {
    if (kind == Quantization::kFp8 || code < 0x80) return code;
    return static_cast<uint8_t>(0x80 | (0x100 - code));  // of int8, which is in two's complement
  };
  parallel_items(panels::num_panels(cols), [&](int64_t panel) {
    panels::for_each_panel(cols, panel, panel + 1, [&](int64_t first, int64_t width, int64_t there) {
      uint8_t* const begin = target + first * groups * kCodeSteps;
      for (int64_t c = 0; c < there; ++c) {
        const uint8_t* row = source + (first + c) * depth;
        uint8_t* const column = begin + c / kGemmLanes * kCodeBytes;
        for (int64_t k = 0; k < depth; ++k) {
          column[k / kCodeSteps * width * kCodeSteps + kernels::code_place(k % kCodeSteps, c % kGemmLanes)] =
              signed_code(row[k]);
        }
      }
    });
  });
}

// One row of sums, scaled, into c.
void write(const float* sums, const float* scales, int64_t there, int64_t width, const at::Tensor& c,
           int64_t place, bool add) {
  const int64_t vectors = width / kGemmLanes;
  const auto scaled = [&](auto* out, auto write_row) {
    using Value = std::remove_pointer_t<decltype(out)>;
    if (there == width) return write_row(sums, scales, vectors, out, add);
    Value buffer[kGemmCols] = {};
    std::copy_n(out, there, buffer);
    write_row(sums, scales, vectors, buffer, add);
    std::copy_n(buffer, there, out);
  };
  const auto& kernels = kernels::scale_kernels();
  if (c.scalar_type() == at::kFloat) {
    scaled(c.data_ptr<float>() + place, kernels.floats);
  } else {
    scaled(reinterpret_cast<uint16_t*>(c.data_ptr<at::BFloat16>()) + place, kernels.bfloat16s);
  }
}

}  // namespace

bool multiplies_codes(const at::Tensor& weight) {
  if (simulated(weight)) return !SimulateGpu::active();
  if (!weight.is_cpu() || kernels::best_isa() != kernels::Isa::kAvx512) return false;
  return weight.scalar_type() == at::kFloat || kernels::bfloat16_vector_kernels() != nullptr;
}

QuantizedMatrix QuantizedMatrix::of(const at::Tensor& weight, Quantization kind, bool own_products) {
  QuantizedMatrix matrix;
  matrix.kind_ = kind;
  matrix.dtype_ = weight.scalar_type();
  matrix.cols_ = weight.size(0);
  matrix.depth_ = weight.size(1);
  const auto options = weight.options();
  matrix.scales_ = at::zeros({panels::padded_cols(matrix.cols_)}, options.dtype(at::kFloat));
  const at::Tensor codes = at::empty({matrix.cols_, matrix.depth_}, options.dtype(code_type(kind)));
  quantize(weight, kind, codes, matrix.scales_.narrow(0, 0, matrix.cols_).unsqueeze(1));
  if (!own_products || !multiplies_codes(weight)) {
    matrix.codes_ = codes;
    return matrix;
  }
  // Columns and steps that are not there have codes of zero.
  matrix.panels_ = at::zeros({panels::padded_cols(matrix.cols_) * groups_of(matrix.depth_) * kCodeSteps},
                             options.dtype(at::kByte));
  if (!simulated(weight)) fill_panels(kind, codes, matrix.panels_);
  return matrix;
}

void QuantizedMatrix::multiply(const at::Tensor& a, const at::Tensor& c, bool accumulate) const {
  if (packed()) return multiply_panels(a, c, accumulate);
  const at::Tensor scales = scales_.narrow(0, 0, cols_).unsqueeze(1);
  const at::Tensor weight = codes_.to(at::kFloat).mul_(scales).to(c.scalar_type());
  const at::Tensor left = a.to(c.scalar_type());
  at::Tensor out = c;
  if (accumulate) {
    at::addmm_out(out, out, left, weight.t());
  } else {
    at::mm_out(out, left, weight.t());
  }
}

void QuantizedMatrix::multiply_panels(const at::Tensor& a, const at::Tensor& c, bool accumulate) const {
  const bool pairs = dtype_ == at::kBFloat16;
  const int64_t rows = a.size(0), groups = groups_of(depth_);
  const int64_t words_per_group = pairs ? kCodeSteps / 2 : kCodeSteps, steps = groups * words_per_group;
  const at::Tensor scratch = panels::words(round_up(rows, kGemmRows) * steps, a.device());
  if (simulated(a)) return;
  Word* const packed = panels::words_of(scratch);
  const panels::Source source(a);
  const int64_t there_are = panels::Source::steps(a, depth_);
  for (int64_t r = 0; r < rows; r += kGemmRows) {
    Word* const block = packed + r * steps;
    source.rows(r, std::min(kGemmRows, rows - r), depth_, 0, there_are, kGemmRows, block);
    std::fill(block + there_are * kGemmRows, block + steps * kGemmRows, 0);
  }
  const auto& kernels = kernels::code_gemm_kernels();
  const auto tile = pairs ? kernels::bfloat16_vector_kernels()->tile : kernels::gemm_kernels().tile;
  const auto code_tile = pairs ? kernels.pair_tile : kernels.float_tile;
  const auto code_words = pairs ? kernels.pair_words : kernels.float_words;
  const CodeTable& values = table(kind_);
  const auto* codes = panels_.const_data_ptr<uint8_t>();
  const auto* scales = scales_.const_data_ptr<float>();
  panels::spread_panels(panels::num_panels(cols_), [&](int64_t from, int64_t to, int64_t) {
    std::vector<float> sums(static_cast<size_t>(rows * kGemmCols));
    Word words[kGroupsAtOnce * kCodeSteps * kGemmCols];
    panels::for_each_panel(cols_, from, to, [&](int64_t first, int64_t width, int64_t there) {
      for (int64_t g = 0; g < groups; g += kGroupsAtOnce) {
        const int64_t count = std::min(kGroupsAtOnce, groups - g), vectors = width / kGemmLanes;
        const uint8_t* own = codes + (first * groups + g * width) * kCodeSteps;
        const Word* left = packed + g * words_per_group * kGemmRows;
        if (rows <= kCodeRows) {
          code_tile(count, left, own, values, vectors, sums.data(), width, rows, g > 0);
          continue;
        }
        code_words(count, own, values, vectors, words);
        for (int64_t r = 0; r < rows; r += kGemmRows) {
          float* const c = sums.data() + r * width;
          tile({.steps = count * words_per_group,
                .a = left + r * steps,
                .b = words,
                .vectors = vectors,
                .c = c,
                .ldc = width,
                .rows = std::min(kGemmRows, rows - r),
                .addend = g > 0 ? c : nullptr,
                .addend_ld = width});
        }
      }
      for (int64_t r = 0; r < rows; ++r)
        write(sums.data() + r * width, scales + first, there, width, c, r * c.stride(0) + first, accumulate);
    });
  });
}

}  // namespace troupe::ops
