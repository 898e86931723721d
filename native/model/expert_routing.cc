// Routing of tokens to experts: the router's product, the choice, the order of the slots, and their
// gradients.
#include "model/expert_routing.h"

#include <ATen/ATen.h>

#include <limits>
#include <tuple>

#include "base/parallel.h"
#include "model/expert_load.h"

namespace troupe {

RoutingShape routing_shape(const ModelConfig& config) {
  if (!config.moe) return {};
  return {config.moe_layers_before(config.num_layers), config.moe->num_experts, config.moe->top_k};
}

Router::Router(const ParameterStore& store, const MoeConfig& config, const std::string& name)
    : num_experts_(config.num_experts),
      top_k_(config.top_k),
      normalize_top_k_(config.normalize_top_k),
      linear_(store, name) {}

namespace {

// What weights are divided by: never 0, as it might be of experts that are given.
at::Tensor normaliser(const at::Tensor& values) {
  return values.sum(-1, true).clamp_min(std::numeric_limits<float>::min());
}

}  // namespace

ExpertRouting Router::route(const at::Tensor& x, int64_t row_tile, const Linear::Packed& weight,
                            const at::Tensor& given, bool on_device) const {
  ExpertRouting routing;
  const int64_t tokens = x.size(0);
  const at::Tensor logits = at::empty({tokens, num_experts_}, x.options());
  for_each_row_tile(
      tokens, row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        linear_.forward(x.narrow(0, begin, end - begin), logits.narrow(0, begin, end - begin), weight);
      },
      weight.packed());
  routing.probs = at::softmax(logits.to(at::kFloat), -1);
  at::Tensor values;
  if (given.defined()) {
    routing.experts = given.to(at::kLong).contiguous();
    values = routing.probs.gather(1, routing.experts);
  } else {
    std::tie(values, routing.experts) = routing.probs.topk(top_k_, -1);
    routing.experts = routing.experts.contiguous();
  }
  routing.weights = normalize_top_k_ ? values / normaliser(values) : values;

  sort_slots(routing, on_device);
  return routing;
}

void Router::sort_slots(ExpertRouting& routing, bool on_device) const {
  const int64_t tokens = routing.experts.size(0);
  const at::Tensor chosen = routing.experts.flatten();
  at::Tensor sorted;
  std::tie(sorted, routing.choice_of) = chosen.sort(/*stable=*/true, 0, /*descending=*/false);
  routing.token_of = routing.choice_of.div(top_k_, "floor");
  const at::Tensor slots = at::arange(chosen.size(0), chosen.options());
  routing.slot_of = at::empty_like(chosen).scatter_(0, routing.choice_of, slots).view({tokens, top_k_});
  if (on_device) {
    const at::Tensor bounds = at::arange(num_experts_ + 1, chosen.options());
    routing.starts = simulated(chosen) ? at::empty_like(bounds, at::kInt)
                                       : at::searchsorted(sorted, bounds, /*out_int32=*/true);
    return;
  }
  // In a simulation the tokens choose all experts equally often, the first ones once more where that is no
  // whole number.
  const at::Tensor counts = simulated(chosen) ? at::Tensor() : at::bincount(chosen, {}, num_experts_).cpu();
  routing.offsets = {0};
  for (int64_t expert = 0; expert < num_experts_; ++expert) {
    const int64_t count = counts.defined() ? counts.const_data_ptr<int64_t>()[expert]
                                           : (chosen.size(0) + num_experts_ - 1 - expert) / num_experts_;
    routing.offsets.push_back(routing.offsets.back() + count);
  }
}

void Router::count(const ExpertRouting& routing, const RouterWork& work, int64_t first) {
  if (work.record.defined()) {
    at::Tensor record = work.record;
    record.copy_(routing.experts.narrow(0, first, record.size(0)));
  }
  if (work.load == nullptr) return;
  const int64_t rows = work.tokens.size(0);
  work.load->add(work.layer, routing.probs.narrow(0, first, rows), routing.experts.narrow(0, first, rows),
                 work.tokens);
}

void Router::backward(const at::Tensor& d_weights, const at::Tensor& x, const ExpertRouting& routing,
                      const RouterWork& work, int64_t first, const at::Tensor& dx) const {
  at::Tensor d_chosen = d_weights;  // by the probabilities of the chosen experts
  if (normalize_top_k_) {
    const at::Tensor total = normaliser(routing.probs.gather(1, routing.experts));
    d_chosen = (d_weights - (d_weights * routing.weights).sum(-1, true)) / total;
  }
  const at::Tensor d_probs = at::zeros_like(routing.probs).scatter_(1, routing.experts, d_chosen);
  if (work.balance.defined()) d_probs.narrow(0, first, work.tokens.size(0)).addr_(work.tokens, work.balance);
  const at::Tensor d_logits =
      (routing.probs * (d_probs - (d_probs * routing.probs).sum(-1, true))).to(x.scalar_type());
  linear_.accumulate_grad(d_logits, x);
  dx.add_(at::mm(d_logits, linear_.weight));
}

}  // namespace troupe
