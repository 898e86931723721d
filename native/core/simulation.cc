#include "core/simulation.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "comm/fake.h"
#include "core/error.h"
#include "core/local_engine.h"
#include "model/parameters.h"

namespace troupe {

namespace {

std::vector<SimulatedCollective> counted(const std::vector<CollectiveLog::Entry>& calls) {
  std::vector<SimulatedCollective> all;
  for (const CollectiveLog::Entry& call : calls) {
    const auto same = [&](const SimulatedCollective& c) {
      return c.phase == call.label.phase && c.name == call.name && c.subject == call.label.subject;
    };
    auto found = std::find_if(all.begin(), all.end(), same);
    if (found == all.end())
      found = all.insert(all.end(), SimulatedCollective{call.label.phase, call.name, call.label.subject});
    ++found->count;
    found->bytes += call.bytes;
  }
  return all;
}

}  // namespace

Simulation simulate_update(const EngineOptions& options, int64_t rank, int64_t size, int64_t micro_batches) {
  validate(options.model);
  require(size >= 1 && rank >= 0 && rank < size, ErrorCode::kInvalidArgument,
          "[simulate] expected a rank below the group's size, got rank ", rank, " of ", size);
  require(micro_batches >= 1, ErrorCode::kInvalidArgument,
          "[simulate] expected at least one micro-batch, got ", micro_batches);
  at::NoGradGuard no_grad;
  const at::Device meta(at::kMeta);
  const at::ScalarType dtype = parse_dtype(options.dtype);
  const auto calls = std::make_shared<FakeCommunicator::Calls>();
  const auto comm = std::make_shared<FakeCommunicator>(rank, size, calls);
  const ShardSlice slice = shard_slice(options, rank, size);
  ParameterStore store(options.model, meta, dtype, options.optim.has_value(), options.seed, slice,
                       options.lora, options.offload);

  Simulation simulation;
  simulation.state = store.bytes();
  for (const ParameterGroup& group : store.groups()) {
    const int64_t own = group.param.tensor().numel();
    simulation.groups.push_back({group.name, own * slice.count, own});
  }
  if (size == 1) return simulation;  // an engine alone has no collectives

  Sharding sharding(store, comm, sharding_options(options, size));
  calls->clear();  // what making an engine takes, once
  Transformer transformer(options.model, store, meta, dtype, &sharding);
  const bool training = options.optim.has_value();
  sharding.agree({micro_batches});
  if (training) sharding.clear_gradients();
  for (int64_t i = 0; i < micro_batches; ++i) transformer.idle_pass(training);
  if (training) {
    sharding.sum_gradients();
    sharding.grad_norm();
  }
  sharding.release_all();
  simulation.collectives = counted(*calls);
  return simulation;
}

}  // namespace troupe
