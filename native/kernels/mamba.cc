// Mamba 2: the choice of kernel.
#include "kernels/mamba.h"

#include <ATen/ATen.h>

#include "base/simulated.h"
#include "kernels/cpu/gated_delta_kernels.h"
#include "kernels/cpu/isa.h"
#include "kernels/gated_delta_reference.h"

TROUPE_DECLARE_TABLES(MambaKernels, mamba_table)

namespace troupe {

const kernels::MambaKernels& kernels::mamba_kernels() {
  return TROUPE_PICK_TABLE(mamba_table);
}

namespace ops {

namespace {

int dtype_of(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? kernels::kBFloat16 : kernels::kFloat32;
}

kernels::MambaSkip skip_arguments(const DeltaSpec& spec, const at::Tensor& x, const at::Tensor& skip) {
  return {x.size(0),   spec.value_heads,      spec.value_dim, x.const_data_ptr<float>() + spec.v(),
          x.stride(0), skip.const_data_ptr(), nullptr};
}

}  // namespace

void mamba_inputs(const DeltaSpec& spec, const at::Tensor& x, const MambaSteps& steps, const DeltaRows& out) {
  if (simulated(x)) return simulate_temporaries(x, 1);
  if (!has_delta_kernels(x)) return reference::mamba_inputs(spec, x, steps, out);
  kernels::mamba_kernels().inputs[dtype_of(x)]({x.size(0),
                                                x.size(1),
                                                spec.value_heads,
                                                static_cast<float>(steps.least),
                                                {x.const_data_ptr(), x.stride(0)},
                                                {steps.dt.const_data_ptr(), steps.dt.stride(0)},
                                                steps.a_log.const_data_ptr(),
                                                steps.dt_bias.const_data_ptr(),
                                                out.x.mutable_data_ptr<float>(),
                                                out.decay.mutable_data_ptr<float>(),
                                                out.beta.mutable_data_ptr<float>()});
}

void mamba_inputs_backward(const MambaSteps& steps, const DeltaRows& gradients, const at::Tensor& ddt,
                           const at::Tensor& da_log, const at::Tensor& ddt_bias) {
  if (simulated(ddt)) return simulate_temporaries(ddt, 6);
  if (!has_delta_kernels(ddt))
    return reference::mamba_inputs_backward(steps, gradients, ddt, da_log, ddt_bias);
  kernels::mamba_kernels().inputs_backward[dtype_of(ddt)]({ddt.size(0),
                                                           ddt.size(1),
                                                           static_cast<float>(steps.least),
                                                           {steps.dt.const_data_ptr(), steps.dt.stride(0)},
                                                           steps.a_log.const_data_ptr(),
                                                           steps.dt_bias.const_data_ptr(),
                                                           gradients.decay.const_data_ptr<float>(),
                                                           gradients.beta.const_data_ptr<float>(),
                                                           {ddt.mutable_data_ptr(), ddt.stride(0)},
                                                           da_log.mutable_data_ptr<float>(),
                                                           ddt_bias.mutable_data_ptr<float>()});
}

void mamba_skip(const DeltaSpec& spec, const at::Tensor& x, const at::Tensor& skip, const at::Tensor& out) {
  if (simulated(out)) return simulate_temporaries(out, 1);
  if (!has_delta_kernels(out)) return reference::mamba_skip(spec, x, skip, out);
  kernels::MambaSkip args = skip_arguments(spec, x, skip);
  args.out = out.mutable_data_ptr<float>();
  kernels::mamba_kernels().skip[dtype_of(skip)](args);
}

void mamba_skip_backward(const DeltaSpec& spec, const at::Tensor& x, const at::Tensor& skip,
                         const at::Tensor& dout, const at::Tensor& dx, const at::Tensor& dskip) {
  if (simulated(dout)) return simulate_temporaries(dout, 2);
  if (!has_delta_kernels(dout)) return reference::mamba_skip_backward(spec, x, skip, dout, dx, dskip);
  kernels::mamba_kernels().skip_backward[dtype_of(skip)](
      {skip_arguments(spec, x, skip), dout.const_data_ptr<float>(), dx.mutable_data_ptr<float>() + spec.v(),
       dx.stride(0), dskip.mutable_data_ptr<float>()});
}

}  // namespace ops

}  // namespace troupe
