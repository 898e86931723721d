// Counts of experts, and what follows from them.
#include "model/expert_load.h"

#include <ATen/ATen.h>

#include "base/simulated.h"
#include "comm/communicator.h"

namespace troupe {

ExpertLoad::ExpertLoad(int64_t layers, int64_t experts, at::Device device)
    : experts_(experts),
      device_(device),
      sums_(at::zeros({layers, 2 * experts + 2},
                      at::TensorOptions().dtype(at::kDouble).device(device.is_meta() ? at::kCPU : device))) {}

void ExpertLoad::clear() {
  sums_.zero_();
}

void ExpertLoad::add(int64_t layer, const at::Tensor& probs, const at::Tensor& experts,
                     const at::Tensor& tokens) {
  if (simulated(probs)) return;
  const at::Tensor row = sums_.select(0, layer);
  const at::Tensor weights = tokens.to(at::kDouble);
  const at::Tensor by_choice = weights.unsqueeze(1).expand_as(experts).reshape({-1});
  row.narrow(0, 0, experts_).index_add_(0, experts.reshape({-1}), by_choice);
  row.narrow(0, experts_, experts_).add_(at::mv(probs.to(at::kDouble).t(), weights));
  row.narrow(0, 2 * experts_, 1).add_(at::dot(at::special_entr(probs).sum(1, false, at::kDouble), weights));
  row.narrow(0, 2 * experts_ + 1, 1).add_(weights.sum());
}

void ExpertLoad::sum(Communicator& all, bool counted) {
  if (all.size() == 1) return;
  if (!counted) sums_.zero_();
  all.all_reduce(sums_, ReduceOp::kSum, {"update", "loads of experts"});
}

double ExpertLoad::tokens() const {
  return sums_.select(1, 2 * experts_ + 1).sum().item<double>();
}

Metrics ExpertLoad::metrics() const {
  const at::Tensor here = sums_.to(at::kCPU);
  const at::Tensor used = here.select(1, 2 * experts_ + 1).gt(0).nonzero().view({-1});
  if (used.size(0) == 0) return {};
  const at::Tensor layers = here.index_select(0, used);
  const at::Tensor chosen = layers.narrow(1, 0, experts_);
  const at::Tensor violation = chosen / chosen.sum(1, true) * static_cast<double>(experts_) - 1;
  Metrics metrics;
  const auto report = [&](const char* name, const at::Tensor& by_layer) {
    metrics[std::string("moe/") + name + "/max"] = by_layer.max().item<double>();
    metrics[std::string("moe/") + name + "/avg"] = by_layer.mean().item<double>();
  };
  report("max_vio", violation.amax(1));
  report("min_vio", violation.amin(1));
  report("avg_vio", violation.abs().mean(1));
  metrics["moe/entropy"] =
      (layers.select(1, 2 * experts_).sum() / layers.select(1, 2 * experts_ + 1).sum()).item<double>();
  return metrics;
}

double ExpertLoad::balance_loss() const {
  const double all = tokens();
  if (all == 0) return 0;
  return (counts().sum(0) * probabilities().sum(0)).sum().item<double>() * static_cast<double>(experts_) /
         (all * all);
}

at::Tensor ExpertLoad::balance_gradient() const {
  const double all = tokens();
  if (all == 0) return at::zeros({experts_}, at::device(device_).dtype(at::kFloat));
  return (counts().sum(0) * (static_cast<double>(experts_) / (all * all))).to(at::kFloat);
}

}  // namespace troupe
