// Valid tokens of ragged arrays, and sums over them.
#pragma once

#include "losses/losses.h"

// What the losses share: the valid tokens of a ragged layout, and sums over them in float64.
namespace troupe::losses {

// The tokens where the mask is 1, in order. Losses work on these alone, so that whatever lies at a
// masked position, even NaN, cannot reach a result.
class ValidTokens {
 public:
  // kInternal when the layout is inconsistent.
  explicit ValidTokens(const ResponseLayout& layout);

  int64_t count() const { return index_.size(0); }            // N
  int64_t num_sequences() const { return lengths_.size(0); }  // b, fully masked ones included
  const at::Tensor& sequence() const { return sequence_; }    // [N] int64: which sequence a token is of
  const at::Tensor& mask_sums() const { return mask_sums_; }  // [b] float64: valid tokens of each sequence

  // column [sum R] -> [N] float64. kInternal naming it when its length is wrong.
  at::Tensor pick(const at::Tensor& column, const char* name) const;
  // column [sum R, k] -> [N, k] float64. kInternal naming it when its length is wrong.
  at::Tensor pick_rows(const at::Tensor& column, const char* name) const;
  // [N] -> [sum R] float64 with 0 at masked positions.
  at::Tensor place(const at::Tensor& values) const;
  // [N] -> [sum R] float32 with 0 at masked positions.
  at::Tensor to_responses(const at::Tensor& values) const;
  // Per-sequence sums [b] of values [N], differentiable.
  at::Tensor sums(const at::Tensor& values) const;
  // sum / (N + 1e-8): verl's masked mean, 0 when nothing is valid. Not differentiable.
  double mean(const at::Tensor& values) const;
  // The weights of aggregation_weights at the valid tokens, [N] float64.
  at::Tensor weights(Aggregation aggregation, double scale_factor) const;

 private:
  int64_t total_;
  double global_tokens_, global_sequences_;
  at::Tensor index_, sequence_, lengths_, mask_sums_;
};

}  // namespace troupe::losses
