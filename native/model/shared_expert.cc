// A gated MLP in tiles of rows, perhaps times a gate of its own per row.
#include "model/shared_expert.h"

#include <ATen/ATen.h>

#include "base/parallel.h"

namespace troupe {

namespace {

at::Tensor rows_of(const at::Tensor& tensor, int64_t begin, int64_t end) {
  return tensor.narrow(0, begin, end - begin);
}

}  // namespace

SharedExpert::SharedExpert(const ParameterStore& store, const ModelConfig& config, const std::string& name)
    : activation_(config.activation),
      gated_(config.gated_mlp),
      gate_(config.moe->shared_gate ? Linear(store, name + ".gate") : Linear()),
      in_(store, name + ".in"),
      out_(store, name + ".out") {}

void SharedExpert::enable_adapters(bool enabled) {
  for (Linear* linear : {&gate_, &in_, &out_}) linear->adapters_enabled = enabled;
}

void SharedExpert::forward(const at::Tensor& x, const at::Tensor& out, int64_t row_tile,
                           SharedExpertSaved* saved, const Packed& packed) const {
  const int64_t total = x.size(0);
  if (total == 0) return;
  const Packed weights = packed.in.defined() || row_tile == kDecodeRowTile ? packed : pack();
  if (saved != nullptr) {
    saved->inner = at::empty({total, in_.out_features()}, x.options());
    if (weighted()) saved->gate = at::empty({total, 1}, x.options().dtype(at::kFloat));
  }
  for_each_row_tile(
      total, row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        const int64_t rows = end - begin;
        const at::Tensor input = rows_of(x, begin, end);
        at::Tensor gate;
        if (weighted()) {
          const at::Tensor logit = at::empty({rows, 1}, x.options());
          gate_.forward(input, logit, weights.gate);
          gate = at::empty({rows, 1}, logit.options().dtype(at::kFloat));
          ops::activation_forward(Activation::kSigmoid, /*gated=*/false, logit.to(at::kFloat), gate);
          if (saved != nullptr) rows_of(saved->gate, begin, end).copy_(gate);
        }
        const at::Tensor inner = saved != nullptr ? rows_of(saved->inner, begin, end)
                                                  : at::empty({rows, in_.out_features()}, x.options());
        in_.forward(input, inner, weights.in);
        const at::Tensor activated = at::empty({rows, out_.weight.size(1)}, x.options());
        ops::activation_forward(activation_, gated_, inner, activated);
        const at::Tensor result = at::empty_like(input);
        out_.forward_part(activated, result, weights.out);
        rows_of(out, begin, end)
            .add_(weighted() ? (result.to(at::kFloat) * gate).to(x.scalar_type()) : result);
      },
      weights.in.packed());
}

void SharedExpert::backward(const at::Tensor& dout, const at::Tensor& x, const SharedExpertSaved& saved,
                            const at::Tensor& dx) const {
  const int64_t total = x.size(0);
  if (total == 0) return;
  const Linear::Packed gate_weight = weighted() ? gate_.pack_backward() : Linear::Packed();
  const Linear::Packed in_weight = in_.pack_backward(), out_weight = out_.pack_backward();
  const at::Tensor d_output = weighted() ? at::empty_like(x) : dout, d_inner = at::empty_like(saved.inner);
  const at::Tensor d_logit = weighted() ? at::empty({total, 1}, x.options()) : at::Tensor();
  const at::Tensor activated = at::empty({total, out_.weight.size(1)}, x.options());
  for_each_row_tile(total, kRowTile, x.device(), [&](int64_t begin, int64_t end) {
    const auto here = [&](const at::Tensor& t) { return rows_of(t, begin, end); };
    // As with a routing weight (model/moe.cc): the gate's gradient is dout . (W activated) = (dout W) .
    // activated.
    const at::Tensor unweighted = at::empty_like(here(activated));
    out_.backward_input(here(dout), unweighted, out_weight);
    at::Tensor d_activated = unweighted, gate;
    if (weighted()) {
      gate = here(saved.gate);
      here(d_output).copy_(here(dout).to(at::kFloat) * gate);
      d_activated = (unweighted.to(at::kFloat) * gate).to(x.scalar_type());
    }
    ops::activation_backward(activation_, gated_, d_activated, here(saved.inner), here(d_inner),
                             here(activated));
    const at::Tensor d_input = at::empty_like(here(dx));
    in_.backward_input(here(d_inner), d_input, in_weight);
    here(dx).add_(d_input);
    if (!weighted()) return;
    const at::Tensor d_gate = (unweighted.to(at::kFloat) * here(activated)).sum(1, /*keepdim=*/true);
    here(d_logit).copy_(d_gate * gate * (1 - gate));
    gate_.backward_input(here(d_logit), d_input, gate_weight);
    here(dx).add_(d_input);
  });
  out_.accumulate_grad(d_output, activated);
  in_.accumulate_grad(d_inner, x);
  if (weighted()) gate_.accumulate_grad(d_logit, x);
}

}  // namespace troupe
