// Passes over all rows of a micro-batch, and steps from kept rows.
#include "model/short_convolution.h"

#include <ATen/ATen.h>

#include "base/parallel.h"
#include "kernels/causal_conv.h"

namespace troupe {

namespace {

// Columns of the input projection, or of its gradient, some rows of them.
struct Columns {
  at::Tensor b, c, x;

  Columns(const at::Tensor& mixed, int64_t begin, int64_t end) {
    const int64_t channels = mixed.size(1) / 3;
    const auto of = [&](int64_t which) {
      return mixed.narrow(0, begin, end - begin).narrow(1, which * channels, channels);
    };
    b = of(0);
    c = of(1);
    x = of(2);
  }
};

at::Tensor rows_of(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.narrow(0, begin, end - begin);
}

// out = a b, without memory for it.
void multiply(const at::Tensor& a, const at::Tensor& b, at::Tensor out) {
  at::mul_out(out, a, b);
}

}  // namespace

ShortConvolution::ShortConvolution(const ParameterStore& store, const LinearAttentionConfig& config,
                                   const std::string& name)
    : LinearAttention(config), convolution_(store, name + ".conv", config_.conv_bias, /*silu=*/false) {}

ShortConvolution::ShortConvolution(const ShortConvolution& all, int64_t rank, int64_t ranks)
    : LinearAttention(all.config_.own_heads(ranks)),
      convolution_(all.convolution_, all.config_.channel_blocks(), rank, ranks) {}

at::Tensor ShortConvolution::inputs(const at::Tensor& mixed, int64_t row_tile) const {
  const at::Tensor product = at::empty({mixed.size(0), config_.channels()}, mixed.options());
  for_each_row_tile(mixed.size(0), row_tile, mixed.device(), [&](int64_t begin, int64_t end) {
    const Columns of(mixed, begin, end);
    multiply(of.b, of.x, rows_of(product, begin, end));
  });
  return product;
}

at::Tensor ShortConvolution::forward(const at::Tensor& mixed, const ops::Segments& segments,
                                     at::Tensor* kept) const {
  const ops::ConvTaps taps(segments, mixed.size(0));
  const ops::ConvWeight weight = convolution_.weight();
  const at::Tensor x = inputs(mixed, kRowTile), y = at::empty_like(x), out = at::empty_like(x);
  for_each_row_tile(mixed.size(0), kRowTile, mixed.device(), [&](int64_t begin, int64_t end) {
    ops::causal_conv_forward(x, weight, taps, begin, end, rows_of(y, begin, end));
    multiply(Columns(mixed, begin, end).c, rows_of(y, begin, end), rows_of(out, begin, end));
  });
  if (kept != nullptr) *kept = y;
  return out;
}

at::Tensor ShortConvolution::backward(const at::Tensor& mixed, const at::Tensor& kept,
                                      const at::Tensor& d_out, const ops::Segments& segments) const {
  const int64_t total = mixed.size(0);
  const auto wide = mixed.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor d_mixed = at::empty_like(mixed), d_y = at::empty(kept.sizes(), kept.options().dtype(wide));
  for_each_row_tile(total, kRowTile, mixed.device(), [&](int64_t begin, int64_t end) {
    const at::Tensor d = rows_of(d_out, begin, end);
    multiply(d, rows_of(kept, begin, end), Columns(d_mixed, begin, end).c);
    multiply(d.to(wide), Columns(mixed, begin, end).c, rows_of(d_y, begin, end));
  });
  const at::Tensor x = inputs(mixed, kRowTile), d_x = at::empty_like(x);
  convolution_.add(
      ops::causal_conv_backward(x, convolution_.weight(), ops::ConvTaps(segments, total), d_y, d_x));
  for_each_row_tile(total, kRowTile, mixed.device(), [&](int64_t begin, int64_t end) {
    const Columns of(mixed, begin, end), by(d_mixed, begin, end);
    multiply(rows_of(d_x, begin, end), of.x, by.b);
    multiply(rows_of(d_x, begin, end), of.b, by.x);
  });
  return d_mixed;
}

void ShortConvolution::step(const at::Tensor& mixed, const std::vector<ops::StateRun>& runs,
                            const std::vector<StateSnapshot>& snapshots, const LinearStates& states,
                            const at::Tensor& out) const {
  const at::Tensor x = inputs(mixed, kStepTile), y = convolution_.step(x, runs, states.conv);
  CausalConvolution::keep(x, runs, snapshots, states.conv);
  for_each_row_tile(mixed.size(0), kStepTile, mixed.device(), [&](int64_t begin, int64_t end) {
    multiply(Columns(mixed, begin, end).c, rows_of(y, begin, end), rows_of(out, begin, end));
  });
}

}  // namespace troupe
