// Depthwise causal convolution over packed segments with common prefixes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/gated_delta_kernels.h"

namespace troupe::ops {

using kernels::kConvWidth;

// For each of `total` packed rows, the kConvWidth rows of its sequence that end with it, the oldest first: of
// its segment or of the prefix; -1 where the sequence has not begun, and for rows that belong to none.
class ConvTaps {
 public:
  ConvTaps(const Segments& segments, int64_t total);

  int64_t rows() const { return static_cast<int64_t>(before_.size()) / kConvWidth; }
  // Those behind belong to no sequence.
  int64_t real() const { return real_; }
  const int32_t* of(int64_t row) const { return before_.data() + row * kConvWidth; }
  // The other way round: the rows that row `row` goes into, ascending, and as which of their taps.
  struct Use {
    int32_t row, tap;
  };
  const Use* uses_begin(int64_t row) const { return uses_.data() + first_[static_cast<size_t>(row)]; }
  const Use* uses_end(int64_t row) const { return uses_.data() + first_[static_cast<size_t>(row) + 1]; }
  // [rows, kConvWidth] int64 on `device`, -1 as `rows`.
  at::Tensor index(at::Device device) const;

 private:
  int64_t real_;
  std::vector<int32_t> before_;
  std::vector<Use> uses_;
  std::vector<int64_t> first_;
};

// What the functions below take: taps float32 [kConvWidth + 1, C], the bias behind those of the weight.
struct ConvWeight {
  at::Tensor taps;
  bool silu;  // behind the sum
};
// Of a weight [C, at most kConvWidth], before which are zeros, and a bias [C], which may be undefined.
at::Tensor conv_taps(const at::Tensor& weight, const at::Tensor& bias);

// y = f(sum over j of weight[j] x[tap j] + bias), f silu or nothing, for rows [begin, end); x [T, C], y [end
// - begin, C] in one dtype.
void causal_conv_forward(const at::Tensor& x, const ConvWeight& weight, const ConvTaps& taps, int64_t begin,
                         int64_t end, const at::Tensor& y);
// The same of rows that lie anywhere on a CPU: taps [n * kConvWidth], n rows of y.
void causal_conv_forward(const std::vector<const void*>& taps, const ConvWeight& weight, const at::Tensor& y);

// From dy [T, C] float32, contiguous, which is consumed: dx [T, C] in the dtype of x, overwritten, and the
// gradient of weight and bias float32 [kConvWidth + 1, C], which is returned. Sums over rows have an order
// that depends on T alone.
at::Tensor causal_conv_backward(const at::Tensor& x, const ConvWeight& weight, const ConvTaps& taps,
                                const at::Tensor& dy, const at::Tensor& dx);

}  // namespace troupe::ops
