#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "kernels/gemm.h"
#include "kernels/ops.h"
#include "model/parameter_store.h"

// The two parametrised layers of a decoder with explicit backward passes: rows-local forward and
// input gradient, called on row tiles, and weight gradients over all rows at once.
namespace troupe {

// y = x W^T + b. W [out, in].
struct Linear {
  at::Tensor weight, bias;            // compute dtype; bias may be undefined
  at::Tensor weight_grad, bias_grad;  // float32; undefined for inference

  Linear() = default;
  Linear(const ParameterStore& store, const std::string& name);

  int64_t out_features() const { return weight.size(0); }
  // The weight as the operand of forward and of backward_input, for passes over many tiles of rows.
  ops::PackedMatrix pack_forward() const { return ops::PackedMatrix::of(weight, true); }
  ops::PackedMatrix pack_backward() const { return ops::PackedMatrix::of(weight, false); }
  // `packed` may be undefined: a few rows (one decoding step) read the weight as it lies.
  void forward(const at::Tensor& x, const at::Tensor& y, const ops::PackedMatrix& packed = {}) const;
  // y = x W^T + b + residual
  void forward_add(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& y,
                   const ops::PackedMatrix& packed = {}) const;
  void backward_input(const at::Tensor& dy, const at::Tensor& dx, const ops::PackedMatrix& packed) const;
  // Adds dy^T x to weight_grad and the column sums of dy to bias_grad.
  void accumulate_grad(const at::Tensor& dy, const at::Tensor& x) const;
};

// RMSNorm or LayerNorm.
struct Norm {
  ops::NormSpec spec;
  at::Tensor weight, bias;
  at::Tensor weight_grad, bias_grad;

  Norm() = default;
  Norm(const ParameterStore& store, const ModelConfig& config, const std::string& name);

  bool defined() const { return weight.defined(); }
};

// What a norm's backward needs from its forward, per row.
struct NormStats {
  at::Tensor rstd, mean;  // [T] float32

  static NormStats make(const Norm& norm, int64_t rows);  // undefined tensors for an undefined norm
  NormStats rows(int64_t begin, int64_t count) const;
};

void norm_forward(const Norm& norm, const at::Tensor& x, const at::Tensor& y, const NormStats& stats);

// A norm's weight gradient is summed per row tile first and over the tiles in order afterwards, so
// that it does not depend on which thread did which tile.
class NormGradient {
 public:
  NormGradient(const Norm& norm, int64_t rows, int64_t tile);
  // dx = (accumulate ? dx : 0) + gradient for the tile that begins at row `begin`.
  void backward(int64_t begin, const at::Tensor& dy, const at::Tensor& x, const NormStats& stats,
                const at::Tensor& dx, bool accumulate);
  void finish();

 private:
  const Norm& norm_;
  int64_t tile_;
  at::Tensor weight_parts_, bias_parts_;  // [tiles, H]
};

}  // namespace troupe
