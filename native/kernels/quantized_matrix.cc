// Codes from weights, and products with them.
#include "kernels/quantized_matrix.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "kernels/cpu/dequantize_kernels.h"
#include "kernels/cpu/isa.h"
#include "kernels/gemm_panels.h"

TROUPE_DECLARE_TABLES(DequantizeKernels, dequantize_table)

namespace troupe::kernels {
const DequantizeKernels& dequantize_kernels() {
  return TROUPE_PICK_TABLE(dequantize_table);
}
}  // namespace troupe::kernels

namespace troupe::ops {

namespace {

using kernels::kGemmCols;
using kernels::kGemmLanes;
using kernels::kGemmRows;
using kernels::Word;

constexpr double kLargestInt8 = 127, kLargestFp8 = 448;
constexpr int64_t kStepsAtOnce = 64;                 // of k: their words stay in the first-level cache
constexpr int64_t kFloatsAtOnce = int64_t{4} << 20;  // of a weight that is being quantised

at::ScalarType code_type(Quantization kind) {
  return kind == Quantization::kInt8 ? at::kChar : at::kFloat8_e4m3fn;
}

int64_t codes_per_word(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 2 : 1;
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

// Codes [N, K] into panels of kGemmCols columns.
void fill_panels(const at::Tensor& codes, int64_t per_word, const at::Tensor& panels) {
  const int64_t cols = codes.size(0), depth = codes.size(1), steps = (depth + per_word - 1) / per_word;
  const auto* source = static_cast<const uint8_t*>(codes.const_data_ptr());
  uint8_t* target = panels.mutable_data_ptr<uint8_t>();
  parallel_items(panels::num_panels(cols), [&](int64_t panel) {
    panels::for_each_panel(cols, panel, panel + 1, [&](int64_t first, int64_t width, int64_t there) {
      uint8_t* const begin = target + first * steps * per_word;
      for (int64_t c = 0; c < there; ++c) {
        const uint8_t* row = source + (first + c) * depth;
        for (int64_t k = 0; k < depth; ++k)
          begin[(k / per_word * width + c) * per_word + k % per_word] = row[k];
      }
    });
  });
}

bool has_products(const at::Tensor& weight) {
  if (simulated(weight)) return !SimulateGpu::active();
  if (!weight.is_cpu() || kernels::best_isa() != kernels::Isa::kAvx512) return false;
  return weight.scalar_type() == at::kFloat || kernels::own_bfloat16_products() != nullptr;
}

kernels::Dequantize dequantize_kernel(Quantization kind, at::ScalarType dtype) {
  const auto& kernels = kernels::dequantize_kernels();
  if (dtype == at::kFloat) return kind == Quantization::kInt8 ? kernels.int8_floats : kernels.fp8_floats;
  return kind == Quantization::kInt8 ? kernels.int8_pairs : kernels.fp8_pairs;
}

template <typename Value>
void write(const float* sums, int64_t rows, int64_t width, int64_t there, Value* c, int64_t ldc, bool add) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < there; ++i) {
      const float sum = sums[r * width + i];
      c[r * ldc + i] = static_cast<Value>(add ? static_cast<float>(c[r * ldc + i]) + sum : sum);
    }
  }
}

}  // namespace

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
  if (!own_products || !has_products(weight)) {
    matrix.codes_ = codes;
    return matrix;
  }
  const int64_t per_word = codes_per_word(matrix.dtype_), steps = (matrix.depth_ + per_word - 1) / per_word;
  // Columns and steps that are not there have codes of zero.
  matrix.panels_ =
      at::zeros({panels::padded_cols(matrix.cols_) * steps * per_word}, options.dtype(at::kByte));
  if (!simulated(weight)) fill_panels(codes, per_word, matrix.panels_);
  return matrix;
}

void QuantizedMatrix::multiply(const at::Tensor& a, const at::Tensor& c, bool accumulate) const {
  if (packed()) return multiply_panels(a, c, accumulate);
  const at::Tensor scales = scales_.narrow(0, 0, cols_).unsqueeze(1);
  const at::Tensor weight = codes_.to(at::kFloat).mul_(scales).to(dtype_);
  at::Tensor out = c;
  if (accumulate) {
    at::addmm_out(out, out, a, weight.t());
  } else {
    at::mm_out(out, a, weight.t());
  }
}

void QuantizedMatrix::multiply_panels(const at::Tensor& a, const at::Tensor& c, bool accumulate) const {
  const int64_t rows = a.size(0), per_word = codes_per_word(dtype_);
  const int64_t steps = panels::Source::steps(a, depth_);
  const at::Tensor scratch = panels::words(round_up(rows, kGemmRows) * steps, a.device());
  if (simulated(a)) return;
  Word* const packed = panels::words_of(scratch);
  const panels::Source source(a);
  for (int64_t r = 0; r < rows; r += kGemmRows)
    source.rows(r, std::min(kGemmRows, rows - r), depth_, 0, steps, kGemmRows, packed + r * steps);
  const auto tile =
      dtype_ == at::kFloat ? kernels::gemm_kernels().tile : kernels::own_bfloat16_products()->tile;
  const auto dequantize = dequantize_kernel(kind_, dtype_);
  const auto* codes = panels_.const_data_ptr<uint8_t>();
  const auto* scales = scales_.const_data_ptr<float>();
  panels::spread_panels(panels::num_panels(cols_), [&](int64_t from, int64_t to) {
    std::vector<float> sums(static_cast<size_t>(rows * kGemmCols));
    Word words[kStepsAtOnce * kGemmCols];
    panels::for_each_panel(cols_, from, to, [&](int64_t first, int64_t width, int64_t there) {
      for (int64_t s0 = 0; s0 < steps; s0 += kStepsAtOnce) {
        const int64_t count = std::min(kStepsAtOnce, steps - s0), vectors = width / kGemmLanes;
        dequantize(count, codes + (first * steps + s0 * width) * per_word, scales + first, vectors, words);
        for (int64_t r = 0; r < rows; r += kGemmRows) {
          tile(count, packed + r * steps + s0 * kGemmRows, words, vectors, sums.data() + r * width, width,
               std::min(kGemmRows, rows - r), s0 > 0);
        }
      }
      if (dtype_ == at::kFloat) {
        write(sums.data(), rows, width, there, c.data_ptr<float>() + first, c.stride(0), accumulate);
      } else {
        write(sums.data(), rows, width, there, c.data_ptr<at::BFloat16>() + first, c.stride(0), accumulate);
      }
    });
  });
}

}  // namespace troupe::ops
