// What Mamba 2 does to a row before and after the scan.
#include "model/mamba2.h"

namespace troupe {

void Mamba2::prepare(const at::Tensor& x, const at::Tensor& mixed, const ops::DeltaRows& rows) const {
  ops::mamba_inputs(spec_, x, steps(mixed), rows);
}

void Mamba2::prepare_backward(const BackwardRows& rows, const SmallGradients& sums) const {
  ops::mamba_skip_backward(spec_, rows.rows.x, small_.skip.value, rows.d_rule, rows.gradients.x, sums.skip);
  ops::mamba_inputs_backward(steps(rows.mixed), rows.gradients, head_columns(rows.d_mixed, 0), sums.a_log,
                             sums.dt_bias);
}

void Mamba2::finish(const at::Tensor& given, const ops::DeltaRows& rows, const at::Tensor& mixed,
                    const at::Tensor& out) const {
  ops::mamba_skip(spec_, rows.x, small_.skip.value, given);
  ops::gated_norm_forward(norm(), given, gate(mixed), small_.norm.value, out);
}

void Mamba2::finish_backward(const at::Tensor& d_out, const at::Tensor& rule, const at::Tensor& mixed,
                             const at::Tensor& d_rule, const at::Tensor& d_mixed,
                             const SmallGradients& sums) const {
  ops::gated_norm_backward(norm(), d_out, rule, gate(mixed), small_.norm.value, d_rule, gate(d_mixed),
                           sums.norm);
}

}  // namespace troupe
