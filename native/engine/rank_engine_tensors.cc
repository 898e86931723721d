// Whole tensors, of what lies on all ranks.
#include <ATen/ATen.h>

#include "engine/rank_engine.h"

namespace troupe {

at::Tensor RankEngine::merged(size_t group) {
  const at::Tensor weights = flat(TensorKind::kParam, group);
  const std::optional<size_t> adapters = store_.adapters_of(group);
  if (!adapters) return weights;
  const bool kept = weights.is_same(store_.owned(TensorKind::kParam, group));
  const at::Tensor whole = weights.to(at::kFloat, /*non_blocking=*/false, /*copy=*/kept);
  store_.merge(group, whole, flat(TensorKind::kParam, *adapters).to(at::kFloat));
  return whole;
}

at::Tensor RankEngine::flat(TensorKind kind, size_t group) {
  if (kind == TensorKind::kMerged) return merged(group);
  return sharding_.gather(kind, group);
}

at::Tensor RankEngine::get_tensor(TensorKind kind, const std::string& param) {
  begin_together([&] {
    prepare();
    // Whether there is one of this kind only the ranks know that have the parameter.
    const size_t held = store_.at(param).group;
    if (store_.groups()[held].here)
      store_.owned(kind == TensorKind::kMerged ? TensorKind::kParam : kind, held);
  });
  const Parameter& parameter = store_.at(param);
  const ParameterGroup& group = store_.groups()[parameter.group];
  at::Tensor values;
  if (group.here) {
    values = whole(parameter, ParameterStore::view(parameter, flat(kind, parameter.group)))
                 .to(at::kCPU, at::kFloat)
                 .contiguous()
                 .clone();
  } else {
    values = at::empty(parameter.placement.shape, at::kFloat);
  }
  if (mesh_.pp()->size() > 1) mesh_.pp()->broadcast(values, group.stage, {"gather", param});
  if (group.expert_rank) mesh_.ep()->broadcast(values, *group.expert_rank, {"gather", param});
  return values;
}

at::Tensor RankEngine::whole(const Parameter& parameter, const at::Tensor& own) {
  if (!exchange_) return own;
  const at::Tensor all = at::zeros(parameter.placement.shape, own.options());
  const at::Tensor target = all.view({-1}), source = own.reshape({-1});
  parameter.placement.for_each_run([&](int64_t local, int64_t begin, int64_t count, const Piece& piece) {
    if (piece.copy == 0) target.narrow(0, begin, count).copy_(source.narrow(0, local, count));
  });
  // Every element is written by one rank and zero on the others. Summed as integers, which keeps every bit
  // (also of -0).
  const at::ScalarType integer = all.element_size() == 4 ? at::kInt : at::kShort;
  mesh_.tp()->all_reduce(all.view(integer), ReduceOp::kSum, {"gather", parameter.info.name});
  return all;
}

}  // namespace troupe
