// Parts of whole matrices, and who has which.
#include "engine/decoding_copy.h"

#include <ATen/ATen.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"

namespace troupe {

namespace {

std::unique_ptr<Communicator> neighbours(const EngineOptions& options, Communicator& world, int64_t tp) {
  const ParallelDims& dims = options.parallel;
  require(dims.tp == 1 && dims.ep == 1 && options.pipeline.stages == 1, ErrorCode::kInvalidArgument,
          "[rollout] expected tensorParallel 1 of a model that training cuts (tp ", dims.tp, ", pp ",
          options.pipeline.stages, ", ep ", dims.ep, "), since it generates as it trains; got ", tp);
  require(world.size() % tp == 0, ErrorCode::kInvalidArgument,
          "[rollout] expected tensorParallel to divide the ", world.size(), " ranks, got ", tp);
  validate(options.model, DecoderPart{.tp = tp});
  std::vector<int64_t> ranks(static_cast<size_t>(tp));
  std::iota(ranks.begin(), ranks.end(), world.rank() / tp * tp);
  // As Sharding names its splits: by what no other engine of these ranks has seen.
  const std::string engine = "engine" + std::to_string(world.log().collectives());
  std::unique_ptr<Communicator> comm =
      world.split(engine + "/decoding" + std::to_string(ranks.front()), ranks);
  world.barrier({"generate", "ranks"});
  return comm;
}

// Of the layers that predict further tokens a generation has the first, or none.
ModelConfig decoding_model(ModelConfig model, bool predicts) {
  if (!predicts) {
    model.prediction.reset();
  } else if (model.prediction) {
    model.prediction->layers = 1;
  }
  return model;
}

// What lies at the pieces of `part` in the whole.
void cut(const at::Tensor& whole, const Parameter& part) {
  const auto dimension = static_cast<int64_t>(part.placement.dimension);
  for (const Piece& piece : part.placement.pieces) {
    if (piece.count == 0) continue;
    part.compute.narrow(dimension, piece.local, piece.count)
        .copy_(whole.narrow(dimension, piece.whole, piece.count));
  }
}

}  // namespace

DecodingCopy::DecodingCopy(const EngineOptions& options, Communicator& world, int64_t tp, bool predicts)
    : comm_(neighbours(options, world, tp)),
      model_(decoding_model(options.model, predicts)),
      store_(decoder_layout(model_, options.lora, {.tp = tp, .tp_rank = comm_->rank()}), options.device,
             options.dtype),
      exchange_(*comm_, /*sequence_parallel=*/false),
      decoder_(model_, store_, options.device, options.dtype, nullptr, nullptr, std::nullopt, &exchange_) {}

void DecodingCopy::reserve() {
  for (ParameterGroup& group : store_.groups()) {
    group.full_compute.allocate();
    group.full_compute.tensor().zero_();  // behind parts that are less than others'
  }
}

void DecodingCopy::fill(const ParameterStore& source, Sharding& sharding) {
  std::vector<size_t> groups;
  const int64_t layers = model_.num_layers + model_.prediction_layers();
  for (size_t group = 0; group < source.groups().size(); ++group) {
    if (source.groups()[group].layer.value_or(0) < layers) groups.push_back(group);
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const size_t group = groups[i];
    Lease whole(&sharding, {group}, "generate");
    if (i + 1 < groups.size()) sharding.prefetch(groups[i + 1], "generate");
    for (const Parameter& parameter : source.all()) {
      if (parameter.group == group) cut(parameter.compute, store_.at(parameter.info.name));
    }
    whole.end();
  }
}

void DecodingCopy::release() {
  for (ParameterGroup& group : store_.groups()) group.full_compute.release();
}

}  // namespace troupe
