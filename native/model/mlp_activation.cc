// An MLP's activation, forward and backward, and the gradients of its scalars.
#include "model/mlp_activation.h"

#include <ATen/ATen.h>

namespace troupe {

MlpActivation::MlpActivation(const ParameterStore& store, const ModelConfig& config, const std::string& name)
    : kind_(config.activation), gated_(config.gated_mlp) {
  if (kind_ != Activation::kXielu) return;
  const Parameter &p = store.at(name + ".alpha_p"), &n = store.at(name + ".alpha_n");
  xielu_ = {p.compute, n.compute, store.at(name + ".beta").compute, store.at(name + ".eps").compute};
  alpha_p_grad_ = p.grad;
  alpha_n_grad_ = n.grad;
}

void MlpActivation::forward(const at::Tensor& x, const at::Tensor& out) const {
  kind_ == Activation::kXielu ? ops::xielu_forward(xielu_, x, out)
                              : ops::activation_forward(kind_, gated_, x, out);
}

void MlpActivation::backward(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& dx,
                             const at::Tensor& out, const at::Tensor& sums) const {
  kind_ == Activation::kXielu ? ops::xielu_backward(xielu_, dout, x, dx, out, sums)
                              : ops::activation_backward(kind_, gated_, dout, x, dx, out);
}

at::Tensor MlpActivation::make_sums(int64_t rows) const {
  if (!alpha_p_grad_.defined()) return {};
  return at::empty({rows, 2}, alpha_p_grad_.options().dtype(at::kFloat));
}

void MlpActivation::finish(const at::Tensor& sums) const {
  if (!sums.defined()) return;
  const at::Tensor total = sums.sum(at::IntArrayRef{0}, /*keepdim=*/false, at::kDouble);
  // Through softplus, whose slope is the sigmoid.
  const auto add = [&](const at::Tensor& grad, const at::Tensor& alpha, int64_t which) {
    at::Tensor(grad).add_(total.narrow(0, which, 1) * at::sigmoid(alpha.to(at::kDouble)));
  };
  add(alpha_p_grad_, xielu_.alpha_p, 0);
  add(alpha_n_grad_, xielu_.alpha_n, 1);
}

}  // namespace troupe
