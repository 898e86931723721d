// RMSNorm of all heads' queries together, and of all heads' keys (OLMo 2, arXiv:2501.00656, section 3).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "kernels/ops.h"
#include "model/decoder_layout.h"
#include "parameters/parameter_store.h"

namespace troupe {

// Where ranks share the heads, each has its own of q, k and the weights, and what the others have enters by
// sums over a row alone: [2, n] float32, of q and of k. squares() and products() leave those of this rank's
// heads; the caller adds up the ranks', and hands the result to forward() and backward(). A key head that
// several ranks hold counts several times in numerator and denominator alike, so that every rank's gradient
// of it is its share.
class WholeQkNorm {
 public:
  // own: of this rank's heads.
  WholeQkNorm(const ParameterStore& store, const ModelConfig& own, const DecoderPart& part,
              const std::string& name);

  int64_t columns() const { return q_.columns + k_.columns; }

  // qkv [n, (Q+2K)*D], from its projection.
  void squares(const at::Tensor& qkv, const at::Tensor& sums) const;
  // In place.
  void forward(const at::Tensor& qkv, const at::Tensor& squares) const;
  // dqkv: by what forward() gave; qkv_pre: what it was given.
  void products(const at::Tensor& dqkv, const at::Tensor& qkv_pre, const at::Tensor& sums) const;
  // In place on dqkv. dweights [columns()] float32 are added to.
  void backward(const at::Tensor& dqkv, const at::Tensor& qkv_pre, const at::Tensor& squares,
                const at::Tensor& products, const at::Tensor& dweights) const;
  // Adds to the weights' gradients, where they are trained.
  void accumulate(const at::Tensor& dweights) const;

 private:
  struct Side {
    at::Tensor weight, grad;
    int64_t first, columns;  // of qkv
    int64_t count;           // columns of all ranks, copies included
    int64_t index;           // in the sums

    at::Tensor of(const at::Tensor& qkv) const { return qkv.narrow(1, first, columns); }
  };
  static Side side(const ParameterStore& store, const std::string& name, int64_t first, int64_t ranks,
                   int64_t index);

  ops::NormSpec spec_;
  Side q_, k_;
};

}  // namespace troupe
