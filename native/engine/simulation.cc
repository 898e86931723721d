// The engine of one rank on meta tensors, and what it calls.
#include "engine/simulation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/simulated.h"
#include "comm/fake.h"
#include "engine/meta_kernels.h"
#include "engine/rank_engine.h"

namespace troupe {

namespace {

using Collectives = std::vector<SimulatedCollective>;

// The axis of a communicator, from the name that mesh.cc, sharding.cc or sequence_group.cc gave its split.
std::string axis_of(const std::string& group, const ParallelDims& dims) {
  if (group.empty()) return dims.size(Axis::kDpCp) == dims.world() ? "dp" : "all";
  if (group.find("/copies") != std::string::npos) return "tp";
  const std::string mesh = "/mesh/";
  const size_t found = group.find(mesh);
  if (found == std::string::npos)
    return group.find("/shards") != std::string::npos || group.find("/replicas") != std::string::npos
               ? "dp"
               : "ulysses";
  const std::string axis =
      group.substr(found + mesh.size(), group.find_first_of("0123456789", found) - found - mesh.size());
  return axis == name_of(Axis::kExpertDp) || axis == name_of(Axis::kDpCp) ? "dp" : axis;
}

bool same_kind(const SimulatedCollective& a, const SimulatedCollective& b) {
  return a.axis == b.axis && a.phase == b.phase && a.name == b.name && a.subject == b.subject;
}

Collectives counted(const FakeCommunicator::Calls& calls, const ParallelDims& dims) {
  Collectives all;
  for (const FakeCommunicator::Call& call : calls) {
    if (std::string(call.name) == "recv") continue;  // its other end sends
    SimulatedCollective one{axis_of(call.group, dims), call.label.phase, call.name, call.label.subject};
    if (one.name == "send" && one.subject.rfind("micro-batch ", 0) == 0) one.subject = "micro-batches";
    auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& other) { return same_kind(other, one); });
    if (found == all.end()) found = all.insert(all.end(), one);
    ++found->count;
    found->bytes += call.bytes;
  }
  return all;
}

// The collectives of `micros` micro-batches, by linear extrapolation from runs of `few_micros` and
// `more_micros`.
Collectives extended(const Collectives& few, Collectives more, int64_t few_micros, int64_t more_micros,
                     int64_t micros) {
  for (SimulatedCollective& all : more) {
    const auto before =
        std::find_if(few.begin(), few.end(), [&](const auto& other) { return same_kind(other, all); });
    require(before != few.end(), ErrorCode::kInternal, "[simulate] ", all.name, " of ", all.subject,
            " begins with more micro-batches");
    const auto extend = [&](int64_t& value, int64_t with_few) {
      value += (value - with_few) / (more_micros - few_micros) * (micros - more_micros);
    };
    extend(all.count, before->count);
    extend(all.bytes, before->bytes);
  }
  return more;
}

}  // namespace

Simulation simulate_update(const EngineOptions& given, int64_t rank, int64_t size, const SequenceLoad& load,
                           bool gpu) {
  validate(given.model);
  require(size >= 1 && rank >= 0 && rank < size, ErrorCode::kInvalidArgument,
          "[simulate] expected a rank below the group's size, got rank ", rank, " of ", size);
  require(load.count >= 1 && load.response >= 1 && load.length > load.response, ErrorCode::kInvalidArgument,
          "[simulate] expected sequences with a prompt and a response, got ", load.count, " of ", load.length,
          " tokens with ", load.response, " of response");
  at::NoGradGuard no_grad;
  install_meta_kernels();
  const SimulateGpu machine(gpu);
  EngineOptions options = given;
  options.device = at::Device(at::kMeta);
  const ParallelDims dims = parallel_dims(options).resolved(size);
  const ParameterStore store = make_store(options, options.device, dims, rank);
  Simulation simulation;
  simulation.state = store.bytes();
  for (size_t g = 0; g < store.groups().size(); ++g) {
    const ParameterGroup& group = store.groups()[g];
    if (!group.here) continue;
    const int64_t own = group.param.tensor().numel();
    simulation.groups.push_back({group.name, own * store.slice(g).count, own});
  }
  const auto calls = std::make_shared<FakeCommunicator::Calls>();
  RankEngine engine(options, std::make_shared<FakeCommunicator>(rank, size, calls));
  const auto run = [&](int64_t sequences) {
    SequenceLoad part = load;
    part.count = sequences;
    calls->clear();
    if (options.optim) {
      run_update(engine, options, part, {}, RoutingLoad::kNone);
    } else {
      run_inference(engine, options, part, /*top_k=*/0, RoutingLoad::kNone);
    }
    return counted(*calls, dims);
  };
  if (size == 1) return simulation;  // an engine alone has no collectives

  const int64_t each = std::max<int64_t>(1, options.max_tokens / (load.length - 1));
  const int64_t micros = (load.count + each - 1) / each;
  const int64_t few = std::max<int64_t>(4, options.pipeline.stages);
  if (micros <= 2 * few) {
    simulation.collectives = run(load.count);
  } else {
    const Collectives less = run(few * each);
    simulation.collectives = extended(less, run(2 * few * each), few, 2 * few, micros);
  }
  return simulation;
}

}  // namespace troupe
