#include "model/layers.h"

#include <ATen/ATen.h>

namespace troupe {

Linear::Linear(const ParameterStore& store, const std::string& name) {
  const Parameter& w = store.at(name + ".weight");
  weight = w.compute;
  weight_grad = w.grad;
  if (const Parameter* b = store.find(name + ".bias")) {
    bias = b->compute;
    bias_grad = b->grad;
  }
}

void Linear::forward(const at::Tensor& x, at::Tensor y) const {
  if (bias.defined()) {
    at::addmm_out(y, bias, x, weight.t());
  } else {
    at::mm_out(y, x, weight.t());
  }
}

void Linear::forward_add(const at::Tensor& x, const at::Tensor& residual, at::Tensor y) const {
  at::addmm_out(y, residual, x, weight.t());
  if (bias.defined()) y.add_(bias);
}

void Linear::backward_input(const at::Tensor& dy, at::Tensor dx) const {
  at::mm_out(dx, dy, weight);
}

void Linear::accumulate_grad(const at::Tensor& dy, const at::Tensor& x) const {
  at::Tensor grad = weight_grad;
  if (dy.scalar_type() == at::kFloat) {
    at::addmm_out(grad, grad, dy.t(), x);
  } else {
    grad.add_(at::mm(dy.t(), x));
  }
  if (bias_grad.defined()) bias_grad.add_(dy.sum(0, false, at::kFloat));
}

Norm::Norm(const ParameterStore& store, const ModelConfig& config, const std::string& name)
    : spec{config.norm, config.norm_eps, config.norm_unit_offset} {
  const Parameter& w = store.at(name + ".weight");
  weight = w.compute;
  weight_grad = w.grad;
  if (const Parameter* b = store.find(name + ".bias")) {
    bias = b->compute;
    bias_grad = b->grad;
  }
}

NormStats NormStats::make(const Norm& norm, int64_t rows) {
  if (!norm.defined()) return {};
  const auto options = norm.weight.options().dtype(at::kFloat);
  return {at::empty({rows}, options),
          norm.spec.kind == NormKind::kLayer ? at::empty({rows}, options) : at::Tensor()};
}

NormStats NormStats::rows(int64_t begin, int64_t count) const {
  return {rstd.defined() ? rstd.narrow(0, begin, count) : rstd,
          mean.defined() ? mean.narrow(0, begin, count) : mean};
}

void norm_forward(const Norm& norm, const at::Tensor& x, const at::Tensor& y, const NormStats& stats) {
  ops::norm_forward(norm.spec, x, norm.weight, norm.bias, y, stats.rstd, stats.mean);
}

NormGradient::NormGradient(const Norm& norm, int64_t rows, int64_t tile) : norm_(norm), tile_(tile) {
  if (!norm.defined()) return;
  const int64_t tiles = norm.weight.is_cpu() ? (rows + tile - 1) / tile : 1;
  const auto options = norm.weight.options().dtype(at::kFloat);
  weight_parts_ = at::zeros({tiles, norm.weight.size(0)}, options);
  if (norm.bias.defined()) bias_parts_ = at::zeros({tiles, norm.weight.size(0)}, options);
}

void NormGradient::backward(int64_t begin, const at::Tensor& dy, const at::Tensor& x, const NormStats& stats,
                            const at::Tensor& dx, bool accumulate) {
  const int64_t tile = begin / tile_;
  ops::norm_backward(norm_.spec, dy, x, norm_.weight, stats.rstd, stats.mean, dx, accumulate,
                     weight_parts_.select(0, tile),
                     bias_parts_.defined() ? bias_parts_.select(0, tile) : at::Tensor());
}

void NormGradient::finish() {
  norm_.weight_grad.add_(weight_parts_.sum(0));
  if (bias_parts_.defined()) norm_.bias_grad.add_(bias_parts_.sum(0));
}

}  // namespace troupe
