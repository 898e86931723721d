// Products with low-rank adapters and their gradients.
#include "model/adapter.h"

#include <ATen/ATen.h>

#include "base/parallel.h"
#include "kernels/device_ops.h"

namespace troupe {

Adapter::Packed Adapter::pack_forward() const {
  return {ops::PackedMatrix::of(a, true), ops::PackedMatrix::of(b, true)};
}

Adapter::Packed Adapter::pack_backward() const {
  return {ops::PackedMatrix::of(a, false), ops::PackedMatrix::of(b, false)};
}

void Adapter::forward(const at::Tensor& x, const at::Tensor& y, const Packed* packed) const {
  at::Tensor out = y.narrow(1, row, rows);
  if (packed == nullptr) {
    at::addmm_out(out, out, at::mm(x, a.t()).mul_(scale), b.t());
    return;
  }
  const at::Tensor low = at::empty({x.size(0), a.size(0)}, x.options());
  ops::gemm(x, packed->a, low, false);
  ops::gemm(low.mul_(scale), packed->b, out, true);
}

void Adapter::backward_input(const at::Tensor& dy, const at::Tensor& dx, const Packed& packed) const {
  const at::Tensor d_low = at::empty({dy.size(0), a.size(0)}, dy.options());
  ops::gemm(dy.narrow(1, row, rows), packed.b, d_low, false);
  ops::gemm(d_low.mul_(scale), packed.a, dx, true);
}

void Adapter::accumulate_grad(const at::Tensor& dy, const at::Tensor& x,
                              const ops::PackedMatrix& packed_x) const {
  const at::Tensor d_out = dy.narrow(1, row, rows);
  const at::Tensor low = at::empty({x.size(0), a.size(0)}, x.options());
  const at::Tensor d_low = at::empty_like(low);
  const ops::PackedMatrix a_forward = ops::PackedMatrix::of(a, true);
  const ops::PackedMatrix b_backward = ops::PackedMatrix::of(b, false);
  for_each_row_tile(x.size(0), kRowTile, x.device(), [&](int64_t begin, int64_t end) {
    const auto tile = [&](const at::Tensor& t) { return t.narrow(0, begin, end - begin); };
    ops::gemm(tile(x), a_forward, tile(low), false);
    ops::gemm(tile(d_out), b_backward, tile(d_low), false);
  });
  if (const auto* device = kernels::device_ops_for(x)) {  // sums in float32, as Linear's own
    device->gemm(d_out.t(), low.mul_(scale), b_grad, /*accumulate=*/true);
    device->gemm(d_low.mul_(scale).t(), x, a_grad, /*accumulate=*/true);
    return;
  }
  ops::gemm_transposed(d_out, ops::PackedMatrix::of(low.mul_(scale), false), b_grad);
  ops::gemm_transposed(d_low.mul_(scale), packed_x, a_grad);
}

}  // namespace troupe
