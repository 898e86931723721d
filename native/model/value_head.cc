// A linear layer with one output, in a fixed order of sums.
#include "model/value_head.h"

#include <ATen/ATen.h>

namespace troupe {

at::Tensor pad_rows(const at::Tensor& values, int64_t rows) {
  const at::Tensor padded = at::zeros({rows}, values.options());
  padded.narrow(0, 0, values.size(0)).copy_(values);
  return padded;
}

at::Tensor value_head_forward(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor values = (hidden.to(at::kFloat) * weight.to(at::kFloat)).sum(1);
  return bias.defined() ? values + bias.to(at::kFloat) : values;
}

at::Tensor value_head_backward(const at::Tensor& d_values, const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& d_weight, const at::Tensor& d_bias) {
  const at::Tensor column = d_values.unsqueeze(1);  // [N, 1]
  d_weight.add_(at::mm(column.t(), hidden.to(at::kFloat)));
  if (d_bias.defined()) d_bias.add_(d_values.sum());
  return (column * weight.to(at::kFloat)).to(hidden.scalar_type());
}

}  // namespace troupe
