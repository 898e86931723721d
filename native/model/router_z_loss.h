// The loss that keeps the logits of the routers of a decoder small.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

class Communicator;

// coefficient * sum over layers with experts of the mean over tokens of logsumexp(z)^2, z the logits of a
// token's router, before a correction bias and before softmax or sigmoid: the z-loss (Zoph et al. 2022,
// arXiv:2202.08906, equation 5). Tokens are those of a whole mini-batch, whose number is known before its
// first pass: neither micro-batches nor ranks show in the loss. It is summed in double precision.
class RouterZLoss {
 public:
  RouterZLoss(double coefficient, at::Device device);

  // A mini-batch begins, of so many tokens over all ranks.
  void begin(double tokens);
  // Of rows of one layer, once in a mini-batch: logits [T, E], and how many tokens each row stands for, [T]
  // float32, as for ExpertLoad::add. Counts them, and adds the gradient by the logits to d_logits [T, E]
  // float32: 2 coefficient logsumexp(z) softmax(z) / tokens for each token.
  void backward(const at::Tensor& logits, const at::Tensor& tokens, const at::Tensor& d_logits);
  // Over the ranks of `all`, each of which has counted what the others have not. All at the same time.
  void sum(Communicator& all);

  double coefficient() const { return coefficient_; }
  double value() const;  // of the mini-batch, before the coefficient; 0 without tokens

 private:
  double coefficient_;
  double tokens_ = 0;
  at::Tensor sum_;  // [1] float64: of squares
};

}  // namespace troupe
