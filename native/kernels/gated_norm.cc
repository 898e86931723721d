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

kernels::GatedNorm arguments(const GatedNormSpec& spec, const at::Tensor& x, const at::Tensor& gate,
                             const at::Tensor& weight) {
  return {x.size(0),
          x.size(1) / spec.dim,
          spec.dim,
          spec.gate_first,
          static_cast<float>(spec.eps),
          x.const_data_ptr<float>(),
          {gate.const_data_ptr(), gate.stride(0)},
          weight.const_data_ptr(),
          {}};
}

int dtype_of(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? kernels::kBFloat16 : kernels::kFloat32;
}

}  // namespace

void gated_norm_forward(const GatedNormSpec& spec, const at::Tensor& x, const at::Tensor& gate,
                        const at::Tensor& weight, const at::Tensor& out) {
  if (simulated(x)) return simulate_temporaries(x, 4);
  if (!has_delta_kernels(gate)) return reference::gated_norm_forward(spec, x, gate, weight, out);
  kernels::GatedNorm args = arguments(spec, x, gate, weight);
  args.out = {out.mutable_data_ptr(), out.stride(0)};
  kernels::gated_norm_kernels().forward[dtype_of(gate)](args);
}

void gated_norm_backward(const GatedNormSpec& spec, const at::Tensor& dout, const at::Tensor& x,
                         const at::Tensor& gate, const at::Tensor& weight, const at::Tensor& dx,
                         const at::Tensor& dgate, const at::Tensor& dweight) {
  if (simulated(x)) return simulate_temporaries(x, 6);
  if (!has_delta_kernels(gate))
    return reference::gated_norm_backward(spec, dout, x, gate, weight, dx, dgate, dweight);
  kernels::gated_norm_kernels().backward[dtype_of(gate)]({arguments(spec, x, gate, weight),
                                                          {dout.const_data_ptr(), dout.stride(0)},
                                                          dx.mutable_data_ptr<float>(),
                                                          {dgate.mutable_data_ptr(), dgate.stride(0)},
                                                          dweight.mutable_data_ptr<float>()});
}

}  // namespace ops

}  // namespace troupe
