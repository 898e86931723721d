// Weights and state in files: every rank reads and writes what it holds.
#include <ATen/core/grad_mode.h>

#include <utility>

#include "base/error.h"
#include "base/simulated.h"
#include "checkpoint/tensor_file.h"
#include "engine/rank_engine.h"

namespace troupe {

void RankEngine::import_tensors(TensorKind kind, const std::vector<TensorFile>& files) {
  require(kind != TensorKind::kMerged, ErrorCode::kInvalidArgument,
          "[weights] merged parameters are made of others and can be exported only: expected an import of "
          "param, grad, expAvg or expAvgSq, got merged");
  at::NoGradGuard no_grad;
  stop_decoding();
  // Before the first, since a file that ends too early has changed some of them.
  if (kind == TensorKind::kParam) weights_changed();
  for (const TensorFile& file : files) {
    check_abort();
    read_tensor_file(
        file, [&](const std::string& name) { return store_.at(name).placement.shape; },
        [&](const TensorSlice& slice) {
          return store_.owned_rows(kind, store_.at(slice.param), slice.row, slice.rows);
        },
        [&](const TensorSlice& slice, const at::Tensor& values) {
          half_changed(kind) = true;
          if (kind == TensorKind::kParam) store_.mark_imported(slice.param);
          store_.assign(kind, store_.at(slice.param), slice.row, values);
        });
  }
  if (kind == TensorKind::kParam && prepared_) store_.refresh_compute();
  half_changed(kind) = false;
}

RankEngine::GroupPart RankEngine::export_part(TensorKind kind, size_t group,
                                              const at::Tensor& adapters) const {
  const at::Tensor own = store_.slice_of(kind == TensorKind::kMerged ? TensorKind::kParam : kind, group);
  const ShardSlice slice = store_.slice(group);
  // Copies of a slice are equal bit for bit, so the ranks that have one share the work.
  const int64_t copies = sharding_.copies(group), copy = sharding_.copy(group);
  const int64_t from = own.numel() * copy / copies;
  const int64_t to = own.numel() * (copy + 1) / copies;
  GroupPart part{slice.index * own.numel() + from, own.narrow(0, from, to - from)};
  if (adapters.defined()) {
    part.values = part.values.to(device_, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    store_.merge(group, part.begin, part.values, adapters.to(part.values.options()));
  }
  return part;
}

bool RankEngine::any_rank(bool mine, const CollectiveLabel& label) {
  const at::Tensor largest = at::tensor({int64_t{mine}}, at::kLong);
  mesh_.world()->all_reduce(largest, ReduceOp::kMax, label);
  return largest.item<int64_t>() != 0;
}

// What of a slice lies in a part of its group; of copies the first rank writes.
void RankEngine::write_part(TensorFileWriter& writer, const TensorSlice& slice, const Parameter& parameter,
                            const GroupPart& part) {
  const int64_t begin = part.begin - parameter.start;  // of the part, in what is placed here
  const int64_t end = begin + part.values.numel();
  bool written = false;
  parameter.placement.for_each_run([&](int64_t local, int64_t whole, int64_t count, const Piece& piece) {
    const int64_t from = std::max(begin, local), to = std::min(end, local + count);
    if (piece.copy > 0 || from >= to) return;
    if (std::exchange(written, true) && simulated(part.values)) return;  // runs are alike, and may be rows
    writer.write(slice, parameter.placement.shape, whole + from - local,
                 part.values.narrow(0, from - begin, to - from));
  });
}

// No rank may leave while others are at work: they would wait for it, or it would be taken for dead.
void RankEngine::export_tensors(TensorKind kind, const std::vector<TensorFile>& files) {
  at::NoGradGuard no_grad;
  std::exception_ptr failed;
  const auto attempt = [&](const auto& body) {
    if (failed) return;
    try {
      body();
    } catch (...) {
      failed = std::current_exception();
    }
  };
  const auto any_failed = [&](const char* when) {
    bool any = true;
    const bool mine = failed != nullptr;
    try {
      any = any_rank(mine, {"export", when});
    } catch (...) {
      if (!mine) throw;
    }
    return any;
  };
  std::vector<std::unique_ptr<TensorFileWriter>> writers;
  const auto open = [&](bool create) {
    for (const TensorFile& file : files) writers.push_back(std::make_unique<TensorFileWriter>(file, create));
  };
  attempt([&] { prepare(); });
  if (mesh_.rank() == 0) attempt([&] { open(true); });
  if (!any_failed("new files")) {
    if (mesh_.rank() != 0) attempt([&] { open(false); });
    for (size_t group = 0; group < store_.groups().size(); ++group) {
      if (!store_.exports(kind, group)) continue;
      const std::optional<size_t> merged =
          kind == TensorKind::kMerged ? store_.adapters_of(group) : std::nullopt;
      // Also where something has failed here: the others gather them, too.
      const at::Tensor adapters = merged ? sharding_.gather(TensorKind::kParam, *merged) : at::Tensor();
      attempt([&] {
        check_abort();
        const GroupPart part = export_part(kind, group, adapters);
        for (size_t f = 0; f < files.size(); ++f) {
          for (const TensorSlice& slice : files[f].tensors) {
            const Parameter& parameter = store_.at(slice.param);
            if (parameter.group != group) continue;
            write_part(*writers[f], slice, parameter, part);
          }
        }
      });
    }
    attempt([&] {
      for (const auto& writer : writers) writer->sync();
    });
    if (!any_failed("written files"))
      for (const auto& writer : writers) writer->keep();
  }
  if (failed) std::rethrow_exception(failed);
}

}  // namespace troupe
