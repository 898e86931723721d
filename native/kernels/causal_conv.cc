// Rows before a row, and the passes over row tiles.
#include "kernels/causal_conv.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/parallel.h"
#include "base/simulated.h"
#include "base/upload.h"
#include "kernels/cpu/isa.h"
#include "kernels/gated_delta_reference.h"

TROUPE_DECLARE_TABLES(ConvKernels, conv_table)

namespace troupe {

const kernels::ConvKernels& kernels::conv_kernels() {
  return TROUPE_PICK_TABLE(conv_table);
}

namespace ops {

namespace {

// Of the rows that `taps` say, `zeros` where there is none.
std::vector<const void*> addresses(const at::Tensor& x, const ConvTaps& taps, int64_t begin, int64_t end,
                                   const at::Tensor& zeros) {
  std::vector<const void*> found(static_cast<size_t>((end - begin) * kConvWidth));
  const auto* base = static_cast<const char*>(x.const_data_ptr());
  const int64_t row_bytes = x.stride(0) * static_cast<int64_t>(x.element_size());
  const int32_t* row = taps.of(begin);
  for (const void*& address : found) {
    address = *row < 0 ? zeros.const_data_ptr() : base + *row * row_bytes;
    ++row;
  }
  return found;
}

int dtype_of(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? kernels::kBFloat16 : kernels::kFloat32;
}

}  // namespace

ConvTaps::ConvTaps(const Segments& segments, int64_t total)
    : real_(real_rows(segments)),
      before_(static_cast<size_t>(total * kConvWidth), -1),
      first_(static_cast<size_t>(total) + 1, 0) {
  for (const Segment& segment : segments) {
    const int64_t behind = segment.prefix < 0 ? 0 : segments[static_cast<size_t>(segment.prefix)].end;
    const int64_t there = first_position(segments, segment);
    for (int64_t row = segment.begin; row < segment.end; ++row) {
      for (int64_t tap = 0; tap < kConvWidth; ++tap) {
        const int64_t source = row - (kConvWidth - 1) + tap, missing = segment.begin - source;
        if (missing > there) continue;
        before_[static_cast<size_t>(row * kConvWidth + tap)] =
            static_cast<int32_t>(missing > 0 ? behind - missing : source);
      }
    }
  }
  for (const int32_t source : before_)
    if (source >= 0) ++first_[static_cast<size_t>(source) + 1];
  for (size_t row = 1; row < first_.size(); ++row) first_[row] += first_[row - 1];
  uses_.resize(static_cast<size_t>(first_.back()));
  std::vector<int64_t> next(first_.begin(), first_.end() - 1);
  for (size_t i = 0; i < before_.size(); ++i) {
    if (before_[i] < 0) continue;
    uses_[static_cast<size_t>(next[static_cast<size_t>(before_[i])]++)] = {
        static_cast<int32_t>(i / kConvWidth), static_cast<int32_t>(i % kConvWidth)};
  }
}

at::Tensor ConvTaps::index(at::Device device) const {
  const at::Tensor all = at::tensor(before_, at::kInt).to(at::kLong).view({rows(), kConvWidth});
  return upload(at::where(all < 0, rows(), all), device);
}

at::Tensor conv_taps(const at::Tensor& weight, const at::Tensor& bias) {
  const auto type = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor all = at::zeros({kConvWidth + 1, weight.size(0)}, weight.options().dtype(type));
  all.narrow(0, kConvWidth - weight.size(1), weight.size(1)).copy_(weight.t());
  if (bias.defined()) all[kConvWidth].copy_(bias);
  return all;
}

void causal_conv_forward(const std::vector<const void*>& taps, const ConvWeight& weight,
                         const at::Tensor& y) {
  kernels::conv_kernels().forward[dtype_of(y)]({weight.silu,
                                                y.size(0),
                                                y.size(1),
                                                taps.data(),
                                                weight.taps.const_data_ptr<float>(),
                                                {y.mutable_data_ptr(), y.stride(0)}});
}

void causal_conv_forward(const at::Tensor& x, const ConvWeight& weight, const ConvTaps& taps, int64_t begin,
                         int64_t end, const at::Tensor& y) {
  if (simulated(x)) return simulate_temporaries(y, 4);
  const int64_t real = std::clamp(taps.real(), begin, end), count = real - begin;
  if (real < end) y.narrow(0, count, end - real).zero_();
  if (count == 0) return;
  const at::Tensor of_real = y.narrow(0, 0, count);
  if (!has_delta_kernels(x))
    return reference::causal_conv_forward(x, weight, taps.index(x.device()).narrow(0, begin, count), of_real);
  const at::Tensor zeros = at::zeros({x.size(1)}, x.options());
  causal_conv_forward(addresses(x, taps, begin, real, zeros), weight, of_real);
}

at::Tensor causal_conv_backward(const at::Tensor& x, const ConvWeight& weight, const ConvTaps& taps,
                                const at::Tensor& dy, const at::Tensor& dx) {
  const int64_t rows = x.size(0), cols = x.size(1);
  if (!simulated(x) && !has_delta_kernels(x))
    return reference::causal_conv_backward(x, weight, taps.index(x.device()), dy, dx);
  const int64_t tiles = (rows + kRowTile - 1) / kRowTile;
  const at::Tensor parts = at::zeros({tiles, kConvWidth + 1, cols}, dy.options());
  if (simulated(x)) {
    simulate_temporaries(x, 6);
    return parts.sum(0);
  }
  const auto& conv = kernels::conv_kernels();
  const int type = dtype_of(x);
  const at::Tensor zeros = at::zeros({cols}, x.options());
  const auto* weights = weight.taps.const_data_ptr<float>();
  auto* const gradients = dy.mutable_data_ptr<float>();
  for_each_row_tile(rows, kRowTile, x.device(), [&](int64_t begin, int64_t end) {
    const std::vector<const void*> from = addresses(x, taps, begin, end, zeros);
    float* const tile = gradients + begin * cols;
    conv.backward[type]({weight.silu, end - begin, cols, from.data(), weights, tile, cols, tile,
                         parts.mutable_data_ptr<float>() + begin / kRowTile * (kConvWidth + 1) * cols});
  });
  for_each_row_tile(rows, kRowTile, x.device(), [&](int64_t begin, int64_t end) {
    std::vector<const float*> sums;
    std::vector<int32_t> as;
    for (int64_t row = begin; row < end; ++row) {
      sums.clear();
      as.clear();
      for (const ConvTaps::Use* use = taps.uses_begin(row); use != taps.uses_end(row); ++use) {
        sums.push_back(gradients + use->row * cols);
        as.push_back(use->tap);
      }
      conv.backward_input[type]({cols, static_cast<int64_t>(sums.size()), sums.data(), as.data(), weights,
                                 static_cast<char*>(dx.mutable_data_ptr()) +
                                     row * dx.stride(0) * static_cast<int64_t>(dx.element_size())});
    }
  });
  return parts.sum(0);
}

}  // namespace ops

}  // namespace troupe
