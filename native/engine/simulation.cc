// The engine's own parts on meta tensors.
#include "engine/simulation.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "comm/fake.h"
#include "base/error.h"
#include "engine/rank_engine.h"
#include "base/parallel.h"

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

Simulation simulate_update(const EngineOptions& options, int64_t rank, int64_t size,
                           const SimulatedWork& work) {
  validate(options.model);
  require(size >= 1 && rank >= 0 && rank < size, ErrorCode::kInvalidArgument,
          "[simulate] expected a rank below the group's size, got rank ", rank, " of ", size);
  require(work.micro_batches >= 1 && work.rows >= 0 && work.responses >= 0, ErrorCode::kInvalidArgument,
          "[simulate] expected at least one micro-batch of no less than 0 rows, and no less than 0 response "
          "tokens, "
          "got ",
          work.micro_batches, ", ", work.rows, " and ", work.responses);
  at::NoGradGuard no_grad;
  const at::Device meta(at::kMeta);
  const auto calls = std::make_shared<FakeCommunicator::Calls>();
  const auto comm = std::make_shared<FakeCommunicator>(rank, size, calls);
  const ParallelDims dims = parallel_dims(options).resolved(size);
  ParameterStore store = make_store(options, meta, dims, rank);

  Simulation simulation;
  simulation.state = store.bytes();
  for (size_t g = 0; g < store.groups().size(); ++g) {
    const int64_t own = store.groups()[g].param.tensor().numel();
    simulation.groups.push_back({store.groups()[g].name, own * store.slice(g).count, own});
  }
  const auto sequence =
      options.ulysses == 1 ? nullptr : std::make_unique<SequenceGroup>(*comm, options.ulysses, options.model.num_heads);
  if (size == 1) return simulation;  // an engine alone has no collectives

  const Mesh mesh(comm, dims);
  Sharding sharding(store, mesh, sharding_options(options, mesh.dp_cp()->size()));
  calls->clear();  // what making an engine takes, once
  Transformer transformer(options.model, store, meta, options.dtype, &sharding, sequence.get());
  const bool training = options.optim.has_value();
  // All sequences of an update are taken to have a gradient.
  sharding.agree(*comm, training ? std::vector<int64_t>{work.micro_batches, 0}
                          : std::vector<int64_t>{work.micro_batches});
  if (training) sharding.clear_gradients();
  const int64_t rows = round_up(work.rows, options.ulysses * kRowTile) / options.ulysses;
  for (int64_t i = 0; i < work.micro_batches; ++i) {
    Stage& stage = transformer.stages().front();
    StagePass pass(training, options.gradient_checkpointing);
    stage.simulated_forward(rows, pass);
    if (training) {
      stage.enter_head_backward(pass);
      stage.simulated_backward(rows, pass);
    } else {
      stage.end(pass);
    }
  }
  if (sequence && work.responses > 0) {
    const auto combine = [&](const char* what) {
      combine_parts(sequence->comm(), at::empty({work.responses}, at::device(meta).dtype(at::kFloat)),
                    {"forward", what});
    };
    combine(options.model.head == HeadKind::kLm ? "log-probs" : "values");
    if (options.model.head == HeadKind::kLm && training) combine("entropy");
  }
  if (training) {
    sharding.sum_gradients();
    sharding.grad_norm(*make_local_communicator());
  }
  sharding.release_all();
  simulation.collectives = counted(*calls);
  return simulation;
}

}  // namespace troupe
