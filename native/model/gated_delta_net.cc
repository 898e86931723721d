// What Gated DeltaNet does to a row before and after the scan.
#include "model/gated_delta_net.h"

#include "kernels/gated_norm.h"

namespace troupe {

void GatedDeltaNet::prepare(const at::Tensor& x, const at::Tensor& mixed, const ops::DeltaRows& rows) const {
  ops::delta_inputs(spec_, x, gates(mixed), rows);
}

void GatedDeltaNet::prepare_backward(const BackwardRows& rows, const SmallGradients& sums) const {
  const ops::DeltaGates d_gates = gates(rows.d_mixed);
  ops::delta_inputs_backward(spec_, rows.x, gates(rows.mixed), rows.gradients, d_gates.b, d_gates.a,
                             sums.a_log, sums.dt_bias);
}

void GatedDeltaNet::finish(const at::Tensor& given, const ops::DeltaRows& rows, const at::Tensor& mixed,
                           const at::Tensor& out) const {
  ops::gated_norm_forward({config_.value_dim, config_.norm_eps}, given, gate(mixed), small_.norm.value, out);
}

void GatedDeltaNet::finish_backward(const at::Tensor& d_out, const at::Tensor& rule, const at::Tensor& mixed,
                                    const at::Tensor& d_rule, const at::Tensor& d_mixed,
                                    const SmallGradients& sums) const {
  ops::gated_norm_backward({config_.value_dim, config_.norm_eps}, d_out, rule, gate(mixed), small_.norm.value,
                           d_rule, gate(d_mixed), sums.norm);
}

}  // namespace troupe
