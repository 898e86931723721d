// Routing of tokens to experts: the router's product, the choice, the order of the slots, and their
// gradients.
#include "model/expert_routing.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "base/parallel.h"
#include "model/expert_load.h"
#include "model/router_z_loss.h"

namespace troupe {

RoutingShape routing_shape(const ModelConfig& config) {
  if (!config.moe) return {};
  return {config.moe_layers_before(config.num_layers), config.moe->num_experts, config.moe->top_k};
}

Router::Router(const ParameterStore& store, const ModelConfig& config, const std::string& name)
    : config_(*config.moe), linear_(store, name), norm_{NormKind::kRms, config.norm_eps} {
  if (config_.correction_bias) correction_bias_ = store.at(name + ".correction_bias").compute;
  if (!config_.beside_mlp) return;
  const Parameter &scale = store.at(name + ".scale"), &of_experts = store.at(name + ".expert_scale");
  scale_ = scale.compute;
  scale_grad_ = scale.grad;
  expert_scale_ = of_experts.compute;
  expert_scale_grad_ = of_experts.grad;
}

namespace {

// What weights are divided by: never 0, as it might be of experts that are given.
at::Tensor normaliser(const at::Tensor& values, double eps = 0) {
  const at::Tensor sum = values.sum(-1, true);
  return eps > 0 ? sum + eps : sum.clamp_min(std::numeric_limits<float>::min());
}

// The scores as probabilities: what loads and the loss that evens them out are about. Sigmoids over their sum
// as in DeepSeek-V3 (arXiv:2412.19437, equation 19).
at::Tensor probabilities(RouterScore score, const at::Tensor& scores) {
  return score == RouterScore::kSoftmax ? scores : scores / normaliser(scores);
}

// -inf where an expert is in a group that is not among the best ones.
at::Tensor within_groups(const at::Tensor& scores, const MoeConfig& config) {
  const at::Tensor grouped = scores.view({scores.size(0), config.groups, -1});
  const at::Tensor sums = std::get<0>(grouped.topk(config.group_best, -1)).sum(-1);
  const at::Tensor best = std::get<1>(sums.topk(config.top_groups, -1));
  const at::Tensor out = at::ones_like(sums, at::kBool).scatter_(1, best, false);
  return grouped.masked_fill(out.unsqueeze(-1), -std::numeric_limits<float>::infinity()).view_as(scores);
}

}  // namespace

at::ScalarType Router::logit_type() const {
  return config_.wide_logits ? at::kFloat : linear_.weight.scalar_type();
}

Linear Router::product() const {
  Linear wide = linear_;
  wide.weight = linear_.weight.to(logit_type());
  return wide;
}

Norm Router::input_norm() const {
  Norm norm;
  norm.spec = norm_;
  if (!scale_.defined()) return norm;
  norm.weight = scale_ * (1 / std::sqrt(static_cast<double>(scale_.size(0))));
  if (scale_grad_.defined()) norm.weight_grad = at::zeros_like(scale_grad_);
  return norm;
}

at::Tensor Router::expert_scales(const at::Tensor& experts) const {
  if (!expert_scale_.defined()) return {};
  return expert_scale_.to(at::kFloat).index_select(0, experts.flatten()).view_as(experts);
}

at::Tensor Router::choose(const at::Tensor& scores) const {
  at::Tensor ranked = correction_bias_.defined() ? scores + correction_bias_ : scores;
  if (config_.top_groups < config_.groups) ranked = within_groups(ranked, config_);
  return std::get<1>(ranked.topk(config_.top_k, -1)).contiguous();
}

at::Tensor Router::logits_of(const at::Tensor& x, int64_t row_tile, const Linear::Packed& weight) const {
  at::Tensor logits = at::empty({x.size(0), config_.num_experts}, x.options().dtype(logit_type()));
  const Norm norm = input_norm();
  for_each_row_tile(
      x.size(0), row_tile, x.device(),
      [&](int64_t begin, int64_t end) {
        const at::Tensor row = x.narrow(0, begin, end - begin);
        const at::Tensor room = norm.defined() ? at::empty_like(row) : row;
        linear_.forward(normed_rows(norm, row, room, {}).to(logit_type()),
                        logits.narrow(0, begin, end - begin), weight);
      },
      weight.packed());
  return logits;
}

ExpertRouting Router::route(const at::Tensor& x, int64_t row_tile, const Linear::Packed& weight,
                            const at::Tensor& given, bool on_device) const {
  ExpertRouting routing;
  const at::Tensor logits = logits_of(x, row_tile, weight).to(at::kFloat);
  if (config_.score == RouterScore::kSigmoid) {
    routing.scores = at::empty_like(logits);
    ops::activation_forward(Activation::kSigmoid, /*gated=*/false, logits, routing.scores);
  } else {
    routing.scores = at::softmax(logits, -1);
  }
  routing.experts = given.defined() ? given.to(at::kLong).contiguous() : choose(routing.scores);
  routing.weights = routing.scores.gather(1, routing.experts);
  if (config_.normalize_top_k) {
    routing.weights = routing.weights / normaliser(routing.weights, config_.normalizer_eps);
  }
  if (config_.routed_scale != 1) routing.weights = routing.weights * config_.routed_scale;
  if (expert_scale_.defined()) routing.weights = routing.weights * expert_scales(routing.experts);

  sort_slots(routing, on_device);
  return routing;
}

void Router::sort_slots(ExpertRouting& routing, bool on_device) const {
  const int64_t tokens = routing.experts.size(0);
  const at::Tensor chosen = routing.experts.flatten();
  at::Tensor sorted;
  std::tie(sorted, routing.choice_of) = chosen.sort(/*stable=*/true, 0, /*descending=*/false);
  routing.token_of = routing.choice_of.div(config_.top_k, "floor");
  const at::Tensor slots = at::arange(chosen.size(0), chosen.options());
  routing.slot_of =
      at::empty_like(chosen).scatter_(0, routing.choice_of, slots).view({tokens, config_.top_k});
  if (on_device) {
    const at::Tensor bounds = at::arange(config_.num_experts + 1, chosen.options());
    routing.starts = simulated(chosen) ? at::empty_like(bounds, at::kInt)
                                       : at::searchsorted(sorted, bounds, /*out_int32=*/true);
    return;
  }
  // In a simulation the tokens choose all experts equally often, the first ones once more where that is no
  // whole number.
  const at::Tensor counts =
      simulated(chosen) ? at::Tensor() : at::bincount(chosen, {}, config_.num_experts).cpu();
  routing.offsets = {0};
  for (int64_t expert = 0; expert < config_.num_experts; ++expert) {
    const int64_t count = counts.defined()
                              ? counts.const_data_ptr<int64_t>()[expert]
                              : (chosen.size(0) + config_.num_experts - 1 - expert) / config_.num_experts;
    routing.offsets.push_back(routing.offsets.back() + count);
  }
}

void Router::count(const ExpertRouting& routing, const RouterWork& work, int64_t first) const {
  if (work.record.defined()) {
    at::Tensor record = work.record;
    record.copy_(routing.experts.narrow(0, first, record.size(0)));
  }
  if (work.load == nullptr) return;
  const int64_t rows = work.tokens.size(0);
  work.load->add(work.layer, probabilities(config_.score, routing.scores.narrow(0, first, rows)),
                 routing.experts.narrow(0, first, rows), work.tokens);
}

at::Tensor Router::weights_backward(const at::Tensor& d_weights, const ExpertRouting& routing) const {
  const at::Tensor scales = expert_scales(routing.experts);
  at::Tensor d_chosen = config_.routed_scale != 1 ? d_weights * config_.routed_scale : d_weights;
  if (scales.defined()) d_chosen = d_chosen * scales;
  const at::Tensor chosen = routing.scores.gather(1, routing.experts);
  const at::Tensor total =
      config_.normalize_top_k ? normaliser(chosen, config_.normalizer_eps) : at::Tensor();
  if (expert_scale_grad_.defined()) {
    const at::Tensor unscaled = (total.defined() ? chosen / total : chosen) * config_.routed_scale;
    const at::Tensor by_expert =
        at::zeros_like(routing.scores).scatter_(1, routing.experts, d_weights * unscaled);
    expert_scale_grad_.add_(by_expert.sum(0));
  }
  if (!total.defined()) return d_chosen;
  // The weights have the factors that d_chosen has.
  const at::Tensor along = (d_weights * routing.weights).sum(-1, true);
  return (d_chosen - along) / total;
}

void Router::backward(const at::Tensor& d_weights, const at::Tensor& x, const ExpertRouting& routing,
                      const RouterWork& work, int64_t first, const at::Tensor& dx) const {
  const at::Tensor& scores = routing.scores;
  const bool sigmoid = config_.score == RouterScore::kSigmoid;
  const at::Tensor d_chosen = weights_backward(d_weights, routing);
  const at::Tensor d_scores = at::zeros_like(scores).scatter_(1, routing.experts, d_chosen);
  if (work.balance.defined()) {
    const int64_t rows = work.tokens.size(0);
    const at::Tensor own = d_scores.narrow(0, first, rows);
    if (sigmoid) {  // through the division by their sum
      const at::Tensor of = scores.narrow(0, first, rows), total = normaliser(of);
      const at::Tensor along = at::mv(of, work.balance).unsqueeze(1) / total;
      own.add_((work.balance.unsqueeze(0) - along) / total * work.tokens.unsqueeze(1));
    } else {
      own.addr_(work.tokens, work.balance);
    }
  }
  const at::Tensor d_logits =
      sigmoid ? d_scores * scores * (1 - scores) : scores * (d_scores - (d_scores * scores).sum(-1, true));
  if (work.z_loss != nullptr) {
    // Of sigmoids the logits cannot be had back where they have rounded to 1, so the product is made again:
    // it is small beside the experts', and what the backward pass keeps stays the same.
    const int64_t rows = work.tokens.size(0);
    work.z_loss->backward(logits_of(x.narrow(0, first, rows), kRowTile, pack()), work.tokens,
                          d_logits.narrow(0, first, rows));
  }
  const at::Tensor rounded = d_logits.to(logit_type());
  const at::Tensor by_input = at::mm(rounded, linear_.weight.to(logit_type()));
  const Norm norm = input_norm();
  if (!norm.defined()) {
    linear_.accumulate_grad(rounded, x.to(logit_type()));
    dx.add_(by_input);
    return;
  }
  const NormStats stats = NormStats::make(norm, x.size(0));
  linear_.accumulate_grad(rounded, norm_rows(norm, x, stats).to(logit_type()));
  dx.add_(norm_rows_backward(norm, by_input.to(x.scalar_type()), x, stats));
  if (scale_grad_.defined())
    scale_grad_.add_(norm.weight_grad, 1 / std::sqrt(static_cast<double>(scale_grad_.size(0))));
}

}  // namespace troupe
