// Norms of the values of attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/ops.h"

namespace troupe {

// RMSNorm of each value head without a weight (Gemma 4: Gemma4TextAttention of transformers), in place on the
// columns of rows that hold them.
class ValueNorm {
 public:
  // Values are `heads` heads of `dim` numbers from column `first` on. options: of the rows.
  ValueNorm(double eps, int64_t first, int64_t heads, int64_t dim, const at::TensorOptions& options);

  // Room for what the forward of `rows` rows saves: [rows, heads] float32.
  at::Tensor make_rstd(int64_t rows) const;
  // rstd: of these rows; undefined: it is not saved.
  void forward(const at::Tensor& qkv, const at::Tensor& rstd) const;
  // qkv_pre: what the forward was given.
  void backward(const at::Tensor& dqkv, const at::Tensor& qkv_pre, const at::Tensor& rstd) const;

 private:
  // A copy [rows * heads, dim].
  at::Tensor heads_of(const at::Tensor& qkv) const;
  void store(const at::Tensor& heads, const at::Tensor& qkv) const;

  ops::NormSpec spec_;
  int64_t first_, heads_, dim_;
  at::Tensor ones_;
};

}  // namespace troupe
