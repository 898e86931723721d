// Weights in buckets, to an inference engine outside and back.
#include <ATen/core/grad_mode.h>

#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "engine/rank_engine.h"

namespace troupe {

namespace {

// Of [rows, ...] or, transposed, [..., rows]: the shape as Hugging Face has it.
int64_t row_size(const WeightChunk& chunk, const std::vector<int64_t>& shape) {
  if (shape.size() == 1) return 1;
  return chunk.transpose ? chunk.rows : shape[1];
}

void check(const WeightChunk& chunk, const std::vector<int64_t>& shape) {
  require(chunk.row >= 0 && chunk.rows >= 0 && chunk.row + chunk.rows <= shape[0],
          ErrorCode::kInvalidArgument, "[weights] ", chunk.label, ": rows ", chunk.row, " to ",
          chunk.row + chunk.rows, " are outside ", chunk.param, ", which has ", shape[0]);
  require(!chunk.transpose || shape.size() == 2, ErrorCode::kInvalidArgument, "[weights] ", chunk.label, ": ",
          chunk.param, " is no matrix and cannot be transposed");
  const int64_t all = chunk.transpose ? shape[1] : chunk.rows;
  require(chunk.first >= 0 && chunk.count > 0 && chunk.first + chunk.count <= all,
          ErrorCode::kInvalidArgument, "[weights] ", chunk.label, ": expected rows within its ", all,
          ", got ", chunk.first, " to ", chunk.first + chunk.count);
}

// Bytes of each chunk.
std::vector<int64_t> sizes(const ParameterStore& store, const WeightBucket& bucket, at::ScalarType dtype) {
  std::vector<int64_t> bytes;
  for (const WeightChunk& chunk : bucket.chunks) {
    const std::vector<int64_t>& shape = store.at(chunk.param).placement.shape;
    check(chunk, shape);
    bytes.push_back(chunk.count * row_size(chunk, shape) * static_cast<int64_t>(c10::elementSize(dtype)));
  }
  return bytes;
}

// The chunk in its whole parameter, as Hugging Face has it.
at::Tensor part(const WeightChunk& chunk, const at::Tensor& whole) {
  const at::Tensor rows = whole.narrow(0, chunk.row, chunk.rows);
  return (chunk.transpose ? rows.t() : rows).narrow(0, chunk.first, chunk.count);
}

}  // namespace

const at::Tensor& RankEngine::kept_parameter(TensorKind kind, const Parameter& parameter) {
  // The tensor-parallel group of the first rank of all.
  const bool needed = mesh_.dp_cp()->rank() == 0 && mesh_.pp()->rank() == 0;
  if (!kept_ || kept_->kind != kind || kept_->group != parameter.group) {
    kept_.reset();  // before the next one takes its place in memory
    const at::Tensor own = flat_on_first_stage(kind, parameter.group);
    kept_ = KeptGroup{kind, parameter.group, needed ? own : at::Tensor(), nullptr, {}};
  }
  if (kept_->parameter != &parameter) {
    kept_->whole = at::Tensor();
    if (needed) kept_->whole = whole(parameter, ParameterStore::view(parameter, kept_->own));
    kept_->parameter = &parameter;
  }
  return kept_->whole;
}

at::Tensor RankEngine::flat_on_first_stage(TensorKind kind, size_t group) {
  const ParameterGroup& held = store_.groups()[group];
  const bool merges = kind == TensorKind::kMerged && store_.adapters_of(group).has_value();
  const at::ScalarType dtype = merges ? at::kFloat : held.dtype;
  const CollectiveLabel label{"export", held.name};
  at::Tensor whole = held.here && !held.copy ? flat(kind, group) : at::Tensor();
  // From rank `from` of an axis to its first one, among the ranks of `here`.
  const auto to_first = [&](Communicator& axis, int64_t from, bool here) {
    if (!here || from == 0) return;
    if (axis.rank() == from) axis.send(whole.contiguous(), 0, label);
    if (axis.rank() != 0) return;
    whole = at::empty({held.whole_size}, at::TensorOptions().dtype(dtype).device(device_));
    axis.recv(whole, from, label);
  };
  // Of the ranks that have it, one of each tensor-parallel place passes it on.
  const int64_t holder = held.expert_rank.value_or(0);
  const bool first_copy = mesh_.expert_dp()->rank() == 0;
  to_first(*mesh_.pp(), held.stage, first_copy && mesh_.ep()->rank() == holder);
  to_first(*mesh_.ep(), holder, first_copy && mesh_.pp()->rank() == 0);
  return whole;
}

void RankEngine::weights_changed() {
  ++weights_version_;
  kept_.reset();
}

ExportedWeights RankEngine::export_weights(TensorKind kind, const WeightBucket& bucket,
                                           std::optional<int64_t> version, bool more) {
  at::NoGradGuard no_grad;
  check_abort();
  const at::ScalarType dtype = parse_dtype(bucket.dtype);
  std::vector<int64_t> bytes;
  ExportedWeights exported{{}, weights_version_};
  const auto begin = [&] {
    prepare();
    require(kind == TensorKind::kParam || kind == TensorKind::kMerged, ErrorCode::kInvalidArgument,
            "[weights] only parameters are exported in buckets");
    require(!version || *version == weights_version_, ErrorCode::kInvalidArgument,
            "[weights] the weights have changed since this export began (an update, an import or a loaded "
            "checkpoint came between two of its buckets): begin a new one");
    bytes = sizes(store_, bucket, dtype);
    if (mesh_.rank() == 0)
      exported.bytes = at::empty({std::accumulate(bytes.begin(), bytes.end(), int64_t{0})}, at::kByte);
  };
  // Once per export: what changes the weights later ends it on all ranks.
  if (version) {
    begin();
  } else {
    begin_together(begin);
  }
  int64_t at = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const WeightChunk& chunk = bucket.chunks[i];
    const Parameter& parameter = store_.at(chunk.param);
    const at::Tensor& whole = kept_parameter(kind, parameter);
    if (exported.bytes.defined()) {
      const at::Tensor source = part(chunk, whole);
      exported.bytes.narrow(0, at, bytes[i]).view(dtype).view(source.sizes()).copy_(source);
    }
    at += bytes[i];
  }
  if (!more) kept_.reset();
  return exported;
}

void RankEngine::import_weights(const WeightBucket& bucket, const at::Tensor& bytes) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, 0);
  check_abort();
  prepare(/*replaces_weights=*/true);
  const at::ScalarType dtype = parse_dtype(bucket.dtype);
  const std::vector<int64_t> byte_counts = sizes(store_, bucket, dtype);
  const int64_t total = std::accumulate(byte_counts.begin(), byte_counts.end(), int64_t{0});
  at::Tensor all = bytes;
  if (mesh_.rank() == 0) {
    require(bytes.defined() && bytes.numel() == total, ErrorCode::kInvalidArgument,
            "[weights] expected a bucket of ", total, " bytes, got ", bytes.defined() ? bytes.numel() : 0);
  } else {
    all = at::empty({total}, at::kByte);
  }
  agree({});
  mesh_.world()->broadcast(all, 0, {"import", "weights"});
  const auto each = [&](const auto& body) {
    int64_t at = 0;
    for (size_t i = 0; i < byte_counts.size(); ++i) {
      body(bucket.chunks[i], all.narrow(0, at, byte_counts[i]).view(dtype));
      at += byte_counts[i];
    }
  };
  each([](const WeightChunk& chunk, const at::Tensor& values) {
    require(at::isfinite(values).all().item<bool>(), ErrorCode::kNonFinite, "[weights] tensor ", chunk.label,
            " holds NaN or infinity");
  });
  weights_changed();
  const bool half = std::exchange(half_changed(TensorKind::kParam), true);
  std::set<size_t> groups;
  each([&](const WeightChunk& chunk, const at::Tensor& values) {
    const Parameter& parameter = store_.at(chunk.param);
    const at::Tensor rows = values.view({chunk.count, -1});
    if (chunk.transpose) {
      store_.assign(TensorKind::kParam, parameter, chunk.row, rows.t(), chunk.first);
    } else {
      store_.assign(TensorKind::kParam, parameter, chunk.row + chunk.first, rows);
    }
    groups.insert(parameter.group);
  });
  for (const size_t group : groups) store_.refresh_compute(group);
  // What a load has left half changed before is so until the caller says that all of it has come.
  half_changed(TensorKind::kParam) = half;
}

}  // namespace troupe
