// Linear layers and norms with explicit backward passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gemm.h"
#include "kernels/ops.h"
#include "model/adapter.h"
#include "model/model_config.h"
#include "parameters/parameter_store.h"

// The two parametrised layers of a decoder with explicit backward passes: rows-local forward and
// input gradient, called on row tiles, and weight gradients over all rows at once.
namespace troupe {

// y = x W^T + b, and what adapters add to it. W [out, in].
struct Linear {
  at::Tensor weight, bias;            // compute dtype; bias may be undefined
  at::Tensor weight_grad, bias_grad;  // float32; undefined for inference and where adapters alone are trained
  std::vector<Adapter> adapters;
  bool adapters_enabled = true;

  // The weights as operands of a pass over many tiles of rows.
  struct Packed {
    ops::PackedMatrix weight;
    std::vector<Adapter::Packed> adapters;  // those that are enabled
    bool defined() const { return weight.defined(); }
    bool packed() const { return weight.packed(); }
  };

  Linear() = default;
  Linear(const ParameterStore& store, const std::string& name);

  int64_t out_features() const { return weight.size(0); }
  // quantization: of the weight; adapters stay what they are.
  Packed pack_forward(ops::Quantization quantization = ops::Quantization::kNone) const;
  Packed pack_backward() const;
  // `packed` may be undefined: a few rows (one decoding step) read the weights as they lie.
  void forward(const at::Tensor& x, const at::Tensor& y, const Packed& packed) const;
  // y = x W^T + b + residual
  void forward_add(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& y,
                   const Packed& packed) const;
  // y = x W^T and adapters, without the bias: this rank's part of a sum over ranks.
  void forward_part(const at::Tensor& x, const at::Tensor& y, const Packed& packed) const;
  void backward_input(const at::Tensor& dy, const at::Tensor& dx, const Packed& packed) const;
  // Adds dy^T x to weight_grad and the column sums of dy to bias_grad, where there are such, and the
  // adapters' gradients to theirs.
  void accumulate_grad(const at::Tensor& dy, const at::Tensor& x) const;

 private:
  void forward_adapters(const at::Tensor& x, const at::Tensor& y, const Packed& packed) const;
};

// RMSNorm or LayerNorm.
struct Norm {
  ops::NormSpec spec;
  at::Tensor weight, bias;
  at::Tensor weight_grad, bias_grad;  // undefined where they are not trained

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
// The norm of x, in `room`; x itself without a norm.
at::Tensor normed_rows(const Norm& norm, const at::Tensor& x, const at::Tensor& room, const NormStats& stats);

// All rows of x [T, H] in tiles, and what its backward takes in `stats`, where that is defined.
at::Tensor norm_rows(const Norm& norm, const at::Tensor& x, const NormStats& stats);
// The gradient by x from dy [T, H]; adds to those of the norm.
at::Tensor norm_rows_backward(const Norm& norm, const at::Tensor& dy, const at::Tensor& x,
                              const NormStats& stats);

// A norm's weight gradient is summed per row tile first and over the tiles in order afterwards, so
// that it does not depend on which thread did which tile.
class NormGradient {
 public:
  NormGradient(const Norm& norm, int64_t rows, int64_t tile);
  // dx = (accumulate ? dx : 0) + gradient for the tile that begins at row `begin`; without a norm that is dy.
  void backward(int64_t begin, const at::Tensor& dy, const at::Tensor& x, const NormStats& stats,
                const at::Tensor& dx, bool accumulate);
  void finish();

 private:
  const Norm& norm_;
  int64_t tile_;
  at::Tensor weight_parts_, bias_parts_;  // [tiles, H]
};

}  // namespace troupe
