// Weights of 8 bits for generation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::ops {

// int8: whole numbers from -127 to 127. fp8: e4m3, from -448 to 448.
enum class Quantization { kNone, kInt8, kFp8 };

// Whether codes of this weight have products of our own, which read one byte per weight.
bool multiplies_codes(const at::Tensor& weight);

// The weight [N, K] of a linear layer as codes with one scale per output n, w[n, k] ~ scale[n] * code[n, k],
// where scale[n] = max over k of |w[n, k]| / the largest code. Activations stay what they are. Where the
// processor has products of our own (kernels/gemm.h) codes become numbers in registers, without rounding, and
// sums are float32, scaled at the end: a decoding step reads one byte per weight. Elsewhere LibTorch
// multiplies with scale * code rounded to the dtype of c, one layer at a time, which saves memory and not
// time.
class QuantizedMatrix {
 public:
  QuantizedMatrix() = default;
  // weight: float32 or bfloat16, which is then the dtype of the activations. own_products: false takes
  // LibTorch's.
  static QuantizedMatrix of(const at::Tensor& weight, Quantization kind, bool own_products = true);

  bool defined() const { return scales_.defined(); }
  // Whether the bits of a product's row do not depend on the number of rows.
  bool packed() const { return panels_.defined(); }
  // c [M, N] = a [M, K] W^T, or c += ...; a in the weight's dtype, c too or float32. See ops::gemm.
  void multiply(const at::Tensor& a, const at::Tensor& c, bool accumulate) const;

 private:
  void multiply_panels(const at::Tensor& a, const at::Tensor& c, bool accumulate) const;

  Quantization kind_ = Quantization::kNone;
  at::ScalarType dtype_ = at::kFloat;
  int64_t depth_ = 0, cols_ = 0;  // K, N
  at::Tensor scales_;             // [N rounded up to whole vectors] float32
  at::Tensor panels_;  // uint8, laid out for kernels/cpu/code_gemm_kernels.h, a panel behind the other
  at::Tensor codes_;   // [N, K] int8 or float8, where LibTorch multiplies
};

}  // namespace troupe::ops
