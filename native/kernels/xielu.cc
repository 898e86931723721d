// xIELU: the choice of kernel, and LibTorch operations where there is none.
#include "kernels/xielu.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "base/simulated.h"
#include "kernels/cpu_dispatch.h"
#include "kernels/device_ops.h"

namespace troupe::ops {

namespace {

// Null where there is only the reference.
const kernels::XieluKernels* kernels_for(const at::Tensor& x) {
  if (x.is_cpu()) return &kernels::row_kernels().xielu;
  const kernels::DeviceOps* device = kernels::device_ops_for(x);
  return device != nullptr ? &device->rows.xielu : nullptr;
}

void check(const char* name, const at::Tensor& t, const at::Tensor& like, at::IntArrayRef sizes,
           at::ScalarType type) {
  require(t.defined() && t.sizes() == sizes && t.scalar_type() == type && t.device() == like.device() &&
              (t.stride(-1) == 1 || t.size(-1) <= 1),
          ErrorCode::kInternal, "[ops] xielu expected ", name, " ", sizes, " ", type,
          " with adjacent columns, got ", t.sizes(), " ", t.scalar_type());
}

kernels::XieluArgs arguments(const Xielu& xielu, const at::Tensor& x) {
  require(x.dim() == 2 && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16),
          ErrorCode::kInternal, "[ops] xielu expected rows of float32 or bfloat16, got ", x.sizes(), " ",
          x.scalar_type());
  check("x", x, x, x.sizes(), x.scalar_type());
  check("alpha_p", xielu.alpha_p, x, {1}, x.scalar_type());
  check("alpha_n", xielu.alpha_n, x, {1}, x.scalar_type());
  check("beta", xielu.beta, x, {1}, at::kFloat);
  check("eps", xielu.eps, x, {1}, at::kFloat);
  return {x.size(0),
          x.size(1),
          xielu.alpha_p.const_data_ptr(),
          xielu.alpha_n.const_data_ptr(),
          xielu.beta.const_data_ptr<float>(),
          xielu.eps.const_data_ptr<float>(),
          {x.const_data_ptr(), x.stride(0)}};
}

kernels::Rows rows_of(const char* name, const at::Tensor& t, const at::Tensor& x) {
  check(name, t, x, x.sizes(), x.scalar_type());
  return {t.mutable_data_ptr(), t.stride(0)};
}

kernels::Dtype dtype_of(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? kernels::kBFloat16 : kernels::kFloat32;
}

}  // namespace

void xielu_forward(const Xielu& xielu, const at::Tensor& x, const at::Tensor& out) {
  if (simulated(x)) return;
  const kernels::XieluKernels* table = kernels_for(x);
  if (table == nullptr) return reference::xielu_forward(xielu, x, out);
  table->forward[dtype_of(x)]({arguments(xielu, x), rows_of("out", out, x)});
}

void xielu_backward(const Xielu& xielu, const at::Tensor& dout, const at::Tensor& x, const at::Tensor& dx,
                    const at::Tensor& out, const at::Tensor& sums) {
  if (simulated(x)) return;
  const kernels::XieluKernels* table = kernels_for(x);
  if (table == nullptr) return reference::xielu_backward(xielu, dout, x, dx, out, sums);
  kernels::XieluBackward args{};
  args.xielu = arguments(xielu, x);
  const kernels::Rows grad = rows_of("dout", dout, x);
  args.dout = {grad.data, grad.stride};
  args.dx = rows_of("dx", dx, x);
  if (out.defined()) args.out = rows_of("out", out, x);
  if (sums.defined()) {
    check("sums", sums, x, {x.size(0), 2}, at::kFloat);
    args.sums = {sums.mutable_data_ptr(), sums.stride(0)};
  }
  table->backward[dtype_of(x)](args);
}

namespace reference {

namespace {

struct Curve {
  at::Tensor x, p, n, beta, eps;  // float32, or float64 where the rows are

  Curve(const Xielu& xielu, const at::Tensor& rows) {
    const at::ScalarType type = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto rounded = [&](const at::Tensor& t) { return t.to(rows.scalar_type()).to(type); };
    x = rows.to(type).clone();  // what follows may overwrite the rows
    beta = xielu.beta.to(type);
    eps = xielu.eps.to(type);
    p = rounded(at::softplus(xielu.alpha_p.to(type)));
    n = rounded(beta + at::softplus(xielu.alpha_n.to(type)));
  }
  at::Tensor bend() const { return at::expm1(at::minimum(x, eps)) - x; }
  at::Tensor value() const { return at::where(x.gt(0), p * x * x, n * bend()) + beta * x; }
  at::Tensor slope() const {
    const at::Tensor grown = at::where(x.lt(eps), at::expm1(x), at::full({}, -1, x.options()));
    return at::where(x.gt(0), 2 * p * x, n * grown) + beta;
  }
};

}  // namespace

void xielu_forward(const Xielu& xielu, const at::Tensor& x, const at::Tensor& out) {
  out.copy_(Curve(xielu, x).value());
}

void xielu_backward(const Xielu& xielu, const at::Tensor& dout, const at::Tensor& x, const at::Tensor& dx,
                    const at::Tensor& out, const at::Tensor& sums) {
  const Curve curve(xielu, x);
  const at::Tensor grad = dout.to(curve.x.scalar_type());
  const at::Tensor positive = curve.x.gt(0).to(grad.scalar_type());
  dx.copy_(grad * curve.slope());
  if (out.defined()) out.copy_(curve.value());
  if (!sums.defined()) return;
  sums.select(1, 0).copy_((grad * positive * curve.x * curve.x).sum(1));
  sums.select(1, 1).copy_((grad * (1 - positive) * curve.bend()).sum(1));
}

}  // namespace reference

}  // namespace troupe::ops
