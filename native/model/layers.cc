// Linear layers and norms, forward and backward.
#include "model/layers.h"

#include <ATen/ATen.h>

#include "base/parallel.h"
#include "kernels/device_ops.h"

namespace troupe {

Linear::Linear(const ParameterStore& store, const std::string& name) {
  const Parameter& w = store.at(name + ".weight");
  weight = w.compute;
  weight_grad = w.grad;
  if (const Parameter* b = store.find(name + ".bias")) {
    bias = b->compute;
    bias_grad = b->grad;
  }
  for (const AdapterParameters& site : store.adapters(name + ".weight")) {
    const Parameter& a = store.at(site.a);
    const Parameter& b = store.at(site.b);
    adapters.push_back({a.compute, b.compute, a.grad, b.grad, site.row, b.info.shape[0], site.scale});
  }
}

Linear::Packed Linear::pack_forward(ops::Quantization quantization) const {
  Packed packed;
  packed.weight = quantization == ops::Quantization::kNone
                      ? ops::PackedMatrix::of(weight, true)
                      : ops::PackedMatrix::quantized(weight, quantization);
  if (adapters_enabled) {
    for (const Adapter& adapter : adapters) packed.adapters.push_back(adapter.pack_forward());
  }
  return packed;
}

Linear::Packed Linear::pack_backward() const {
  Packed packed{ops::PackedMatrix::of(weight, false), {}};
  for (const Adapter& adapter : adapters) packed.adapters.push_back(adapter.pack_backward());
  return packed;
}

void Linear::forward(const at::Tensor& x, const at::Tensor& y, const Packed& packed) const {
  at::Tensor out = y;
  const at::Tensor added = bias.defined() ? bias.expand_as(out) : at::Tensor();
  if (packed.defined()) {
    ops::gemm_add(x, packed.weight, added, out);
  } else if (bias.defined()) {
    at::addmm_out(out, added, x, weight.t());
  } else {
    at::mm_out(out, x, weight.t());
  }
  forward_adapters(x, y, packed);
}

void Linear::forward_add(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& y,
                         const Packed& packed) const {
  at::Tensor out = y;
  if (packed.defined()) {
    ops::gemm_add(x, packed.weight, residual, out);
  } else {
    at::addmm_out(out, residual, x, weight.t());
  }
  if (bias.defined()) out.add_(bias);
  forward_adapters(x, y, packed);
}

void Linear::forward_part(const at::Tensor& x, const at::Tensor& y, const Packed& packed) const {
  at::Tensor out = y;
  if (packed.defined()) {
    ops::gemm(x, packed.weight, out, false);
  } else {
    at::mm_out(out, x, weight.t());
  }
  forward_adapters(x, y, packed);
}

void Linear::forward_adapters(const at::Tensor& x, const at::Tensor& y, const Packed& packed) const {
  if (!adapters_enabled) return;
  for (size_t i = 0; i < adapters.size(); ++i) {
    adapters[i].forward(x, y, packed.defined() ? &packed.adapters[i] : nullptr);
  }
}

void Linear::backward_input(const at::Tensor& dy, const at::Tensor& dx, const Packed& packed) const {
  ops::gemm(dy, packed.weight, dx, false);
  for (size_t i = 0; i < adapters.size(); ++i) adapters[i].backward_input(dy, dx, packed.adapters[i]);
}

void Linear::accumulate_grad(const at::Tensor& dy, const at::Tensor& x) const {
  if (bias_grad.defined()) bias_grad.add_(dy.sum(0, false, at::kFloat));
  const auto* device = kernels::device_ops_for(dy);
  if (device != nullptr && weight_grad.defined()) device->gemm(dy.t(), x, weight_grad, /*accumulate=*/true);
  const bool here = device == nullptr && weight_grad.defined();
  if (!here && adapters.empty()) return;
  const ops::PackedMatrix packed_x = ops::PackedMatrix::of(x, false);
  if (here) ops::gemm_transposed(dy, packed_x, weight_grad);
  for (const Adapter& adapter : adapters) adapter.accumulate_grad(dy, x, packed_x);
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

at::Tensor normed_rows(const Norm& norm, const at::Tensor& x, const at::Tensor& room,
                       const NormStats& stats) {
  if (!norm.defined()) return x;
  norm_forward(norm, x, room, stats);
  return room;
}

NormGradient::NormGradient(const Norm& norm, int64_t rows, int64_t tile) : norm_(norm), tile_(tile) {
  if (!norm.defined()) return;
  const int64_t tiles = on_cpu_threads(norm.weight.device()) ? (rows + tile - 1) / tile : 1;
  const auto options = norm.weight.options().dtype(at::kFloat);
  weight_parts_ = at::zeros({tiles, norm.weight.size(0)}, options);
  if (norm.bias.defined()) bias_parts_ = at::zeros({tiles, norm.weight.size(0)}, options);
}

void NormGradient::backward(int64_t begin, const at::Tensor& dy, const at::Tensor& x, const NormStats& stats,
                            const at::Tensor& dx, bool accumulate) {
  if (!norm_.defined()) {
    accumulate ? dx.add_(dy) : dx.copy_(dy);
    return;
  }
  const int64_t tile = begin / tile_;
  ops::norm_backward(norm_.spec, dy, x, norm_.weight, stats.rstd, stats.mean, dx, accumulate,
                     weight_parts_.select(0, tile),
                     bias_parts_.defined() ? bias_parts_.select(0, tile) : at::Tensor());
}

at::Tensor norm_rows(const Norm& norm, const at::Tensor& x, const NormStats& stats) {
  const at::Tensor y = at::empty_like(x);
  for_each_row_tile(x.size(0), kRowTile, x.device(), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    norm_forward(norm, x.narrow(0, begin, count), y.narrow(0, begin, count), stats.rows(begin, count));
  });
  return y;
}

at::Tensor norm_rows_backward(const Norm& norm, const at::Tensor& dy, const at::Tensor& x,
                              const NormStats& stats) {
  const at::Tensor dx = at::empty_like(dy);
  NormGradient gradient(norm, x.size(0), kRowTile);
  for_each_row_tile(x.size(0), kRowTile, x.device(), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    gradient.backward(begin, dy.narrow(0, begin, count), x.narrow(0, begin, count), stats.rows(begin, count),
                      dx.narrow(0, begin, count), false);
  });
  gradient.finish();
  return dx;
}

void NormGradient::finish() {
  if (!norm_.weight_grad.defined()) return;
  norm_.weight_grad.add_(weight_parts_.sum(0));
  if (bias_parts_.defined()) norm_.bias_grad.add_(bias_parts_.sum(0));
}

}  // namespace troupe
