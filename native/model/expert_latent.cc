// Products of rows with the two matrices around the experts.
#include "model/expert_latent.h"

#include <ATen/ATen.h>

#include "base/parallel.h"

namespace troupe {

namespace {

at::Tensor rows_of(const at::Tensor& tensor, int64_t begin, int64_t end) {
  return tensor.narrow(0, begin, end - begin);
}

void multiply(const Linear& linear, const at::Tensor& x, const at::Tensor& y, int64_t row_tile,
              const Linear::Packed& packed) {
  const Linear::Packed weight =
      packed.defined() || row_tile == kDecodeRowTile ? packed : linear.pack_forward();
  for_each_row_tile(
      x.size(0), row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        linear.forward(rows_of(x, begin, end), rows_of(y, begin, end), weight);
      },
      weight.packed());
}

void multiply_backward(const Linear& linear, const at::Tensor& dy, const at::Tensor& x,
                       const at::Tensor& dx) {
  const Linear::Packed weight = linear.pack_backward();
  for_each_row_tile(dy.size(0), kRowTile, dy.device(), [&](int64_t begin, int64_t end) {
    linear.backward_input(rows_of(dy, begin, end), rows_of(dx, begin, end), weight);
  });
  linear.accumulate_grad(dy, x);
}

}  // namespace

at::Tensor ExpertLatent::inputs(const at::Tensor& x, int64_t row_tile, const Packed& packed) const {
  at::Tensor inputs = at::empty({x.size(0), in_.out_features()}, x.options());
  multiply(in_, x, inputs, row_tile, packed.in);
  return inputs;
}

void ExpertLatent::outputs(const at::Tensor& sum, const at::Tensor& out, int64_t row_tile,
                           const Packed& packed) const {
  multiply(out_, sum, out, row_tile, packed.out);
}

at::Tensor ExpertLatent::outputs_backward(const at::Tensor& dout, const at::Tensor& sum) const {
  at::Tensor d_sum = at::empty_like(sum);
  multiply_backward(out_, dout, sum, d_sum);
  return d_sum;
}

void ExpertLatent::inputs_backward(const at::Tensor& d_inputs, const at::Tensor& x,
                                   const at::Tensor& dx) const {
  multiply_backward(in_, d_inputs, x, dx);
}

}  // namespace troupe
