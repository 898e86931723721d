// Matrix products with operands that are packed once and used often.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/quantized_matrix.h"

// Matrix products of the decoder and the head on a CPU. On processors with AVX2 they run here, on operands
// packed for the purpose: a weight is packed once per pass and serves every tile of rows, where a BLAS packs
// it again in every call. bfloat16 needs the processor's instructions for it (AVX512_BF16, or the matrix
// units of AMX, which come first), and is summed in float32. Other processors take LibTorch's.
namespace troupe::ops {

// Whether products with this matrix would run here.
bool packs(const at::Tensor& matrix);

// The right operand B [K, N] of products with many left operands.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // From a row-major [K, N], or, transposed, from [N, K] (the layout of a linear layer's weight). The row
  // stride is free. parallel: over all threads; false inside a parallel region.
  static PackedMatrix of(const at::Tensor& matrix, bool transposed, bool parallel = true);
  // From the weight [N, K] of a linear layer, with codes of 8 bits in its place.
  static PackedMatrix quantized(const at::Tensor& weight, Quantization kind);
  // Not packed anywhere: for a few rows, which cost less than packing.
  static PackedMatrix as_it_lies(const at::Tensor& matrix, bool transposed);

  // The product behind one with this matrix will be one with `next`, whose first columns then come from
  // memory while the last of this one are multiplied. It is kept as long as this one.
  void precede(const PackedMatrix& next);

  bool defined() const { return cols_ > 0; }
  // Whether products with this matrix run here, so that their bits do not depend on the shape of the left
  // operand.
  bool packed() const { return panels_.defined() || quantized_.packed(); }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  friend void gemm_add(const at::Tensor&, const PackedMatrix&, const at::Tensor&, const at::Tensor&);
  friend void gemm_transposed(const at::Tensor&, const PackedMatrix&, const at::Tensor&, bool);

  int64_t rows_ = 0, cols_ = 0;
  at::Tensor panels_;  // int32 [N rounded up to whole vectors * steps of K], a panel of kGemmCols columns
                       // behind the other
  at::Tensor plain_;   // [K, N], where LibTorch multiplies
  QuantizedMatrix quantized_;
  at::Tensor next_panels_;
  int64_t next_rows_ = 0, next_cols_ = 0;
};

// c [M, N] = a [M, K] B, or c += a B. Unit column strides, free row strides. a has the dtype of B; c too, or
// with packed panels float32. With packed panels a row of c is summed in an order that depends on K alone:
// the same bits whatever M is and wherever the row lies. One thread inside a parallel region; outside of one
// packed panels are spread over all threads.
void gemm(const at::Tensor& a, const PackedMatrix& b, const at::Tensor& c, bool accumulate);

// c = addend + a B, as gemm() onto a c that the addend was copied to, without the copy. addend [M, N] has c's
// dtype, unit column stride and any row stride (0: one row for all, a bias); it is c, shares no memory with
// it, or is undefined: c = a B.
void gemm_add(const at::Tensor& a, const PackedMatrix& b, const at::Tensor& addend, const at::Tensor& c);

// c [M, N] (float32) += a^T B for a [K, M]: the gradient of a weight, K being the tokens. Over all threads,
// with the same bits for any number of them; parallel: false inside a parallel region.
void gemm_transposed(const at::Tensor& a, const PackedMatrix& b, const at::Tensor& c, bool parallel = true);

}  // namespace troupe::ops
