// The gated norm: the choice of kernel.
#include "kernels/gated_norm.h"

#include <ATen/ATen.h>

#include "base/simulated.h"
#include "kernels/cpu/gated_delta_kernels.h"
#include "kernels/cpu/isa.h"
#include "kernels/gated_delta_reference.h"

TROUPE_DECLARE_TABLES(GatedNormKernels, gated_norm_table)

namespace troupe {

const kernels::GatedNormKernels& kernels::gated_norm_kernels() {
  return TROUPE_PICK_TABLE(gated_norm_table);
}

namespace ops {

namespace {

kernels::GatedNorm arguments(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                             double eps) {
  const int64_t dim = weight.size(0);
  return {x.size(0),
          x.size(1) / dim,
          dim,
          static_cast<float>(eps),
          x.const_data_ptr<float>(),
          {gate.const_data_ptr(), gate.stride(0)},
          weight.const_data_ptr(),
          {}};
}

int dtype_of(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? kernels::kBFloat16 : kernels::kFloat32;
}

}  // namespace

void gated_norm_forward(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight, double eps,
                        const at::Tensor& out) {
  if (simulated(x)) return simulate_temporaries(x, 4);
  if (!has_delta_kernels(gate)) return reference::gated_norm_forward(x, gate, weight, eps, out);
  kernels::GatedNorm args = arguments(x, gate, weight, eps);
  args.out = {out.mutable_data_ptr(), out.stride(0)};
  kernels::gated_norm_kernels().forward[dtype_of(gate)](args);
}

void gated_norm_backward(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& gate,
                         const at::Tensor& weight, double eps, const at::Tensor& dx, const at::Tensor& dgate,
                         const at::Tensor& dweight) {
  if (simulated(x)) return simulate_temporaries(x, 6);
  if (!has_delta_kernels(gate))
    return reference::gated_norm_backward(dout, x, gate, weight, eps, dx, dgate, dweight);
  kernels::gated_norm_kernels().backward[dtype_of(gate)]({arguments(x, gate, weight, eps),
                                                          {dout.const_data_ptr(), dout.stride(0)},
                                                          dx.mutable_data_ptr<float>(),
                                                          {dgate.mutable_data_ptr(), dgate.stride(0)},
                                                          dweight.mutable_data_ptr<float>()});
}

}  // namespace ops

}  // namespace troupe
