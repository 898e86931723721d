// Momentum by slices, directions by whole matrices.
#include "fsdp/muon_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace troupe {

namespace {

class GroupStep {
 public:
  GroupStep(ParameterStore& store, size_t group, const OptimizerOptions& options, const StepSize& size,
            Communicator& shards, Communicator& tp)
      : store_(store),
        group_(group),
        options_(options),
        size_(size),
        shards_(shards),
        tp_(tp),
        buffers_(store.groups()[group].buffers()),
        count_(buffers_.param.numel()),
        first_(store.slice(group).index * count_) {
    for (const Parameter& parameter : store.all()) {
      if (parameter.group == group && !parameter.matrices.empty()) matrices_.push_back(&parameter);
    }
  }

  void run() {
    step_elements();
    if (matrices_.empty()) return;
    const at::Tensor directions = directions_of_all();
    for (const Parameter* parameter : matrices_) {
      const SliceRun run = run_of(*parameter);
      if (run.count > 0) step_matrix(*parameter, run, directions);
    }
  }

 private:
  // What of a parameter lies in the slice.
  SliceRun run_of(const Parameter& parameter) const {
    const int64_t from = std::max(parameter.start, first_);
    const int64_t to = std::min(parameter.start + parameter.info.size(), first_ + count_);
    return {from - first_, std::max<int64_t>(0, to - from)};
  }

  // Everything between the matrices.
  void step_elements() {
    int64_t kept = 0;
    for (const SliceRun& run : store_.elements(group_)) {
      const auto part = [&](const at::Tensor& x) {
        return x.defined() ? x.narrow(0, run.begin, run.count) : x;
      };
      adamw_step({part(buffers_.param), part(buffers_.grad), part(buffers_.exp_avg),
                  buffers_.exp_avg_sq.narrow(0, kept, run.count), part(buffers_.compute)},
                 options_, size_.lr, size_.grad_scale, size_.step,
                 {static_cast<int64_t>(group_), first_ + run.begin});
      kept += run.count;
    }
  }

  // Of the whole group, where it lies in its flat buffer; what belongs to no matrix has no meaning.
  at::Tensor directions_of_all() {
    const MuonOptions& muon = *options_.muon;
    const at::Tensor own = buffers_.grad.mul(size_.grad_scale);
    for (const Parameter* parameter : matrices_) {
      const SliceRun run = run_of(*parameter);
      if (run.count == 0) continue;
      const at::Tensor direction = own.narrow(0, run.begin, run.count);
      const at::Tensor momentum = buffers_.exp_avg.narrow(0, run.begin, run.count);
      momentum.lerp_(direction, 1 - muon.momentum);
      if (muon.nesterov) {
        direction.lerp_(momentum, muon.momentum);
      } else {
        direction.copy_(momentum);
      }
    }
    if (shards_.size() == 1) return own;
    const at::Tensor all = at::empty({count_ * shards_.size()}, own.options());
    shards_.all_gather(all, own, label());
    return all;
  }

  void step_matrix(const Parameter& parameter, const SliceRun& run, const at::Tensor& directions) {
    const std::vector<int64_t>& shape = parameter.placement.shape;
    const bool cut = parameter.info.shape != shape;
    at::Tensor whole = ParameterStore::view(parameter, directions);
    if (cut) whole = put_together(parameter, whole);
    at::Tensor update = at::empty(shape, whole.options());
    int64_t row = 0;
    for (const int64_t rows : parameter.matrices) {
      const at::Tensor direction = orthogonalized(whole.narrow(0, row, rows), *options_.muon);
      update.narrow(0, row, rows).copy_(direction).mul_(muon_scale(rows, shape[1], *options_.muon));
      row += rows;
    }
    if (cut) update = own_pieces(parameter, update);
    const at::Tensor own = update.view({-1}).narrow(0, first_ + run.begin - parameter.start, run.count);
    const at::Tensor param = buffers_.param.narrow(0, run.begin, run.count);
    param.mul_(1 - size_.lr * options_.weight_decay).add_(own, -size_.lr);
    if (buffers_.compute.defined()) buffers_.compute.narrow(0, run.begin, run.count).copy_(param);
  }

  // The pieces of a rank and their places in the whole.
  template <typename Body>
  static void for_each_piece(const Parameter& parameter, const at::Tensor& local, const at::Tensor& whole,
                             const Body& body) {
    const auto dimension = static_cast<int64_t>(parameter.placement.dimension);
    for (const Piece& piece : parameter.placement.pieces) {
      if (piece.count == 0) continue;
      body(piece, local.narrow(dimension, piece.local, piece.count),
           whole.narrow(dimension, piece.whole, piece.count));
    }
  }
  at::Tensor put_together(const Parameter& parameter, const at::Tensor& local) {
    const at::Tensor whole = at::zeros(parameter.placement.shape, local.options());
    for_each_piece(parameter, local, whole,
                   [](const Piece& piece, const at::Tensor& from, const at::Tensor& to) {
                     if (piece.copy == 0) to.copy_(from);
                   });
    tp_.all_reduce(whole, ReduceOp::kSum, label());  // of what one rank has and zeros
    return whole;
  }
  static at::Tensor own_pieces(const Parameter& parameter, const at::Tensor& whole) {
    const at::Tensor local = at::zeros(parameter.info.shape, whole.options());
    for_each_piece(parameter, local, whole,
                   [](const Piece&, const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
    return local;
  }

  CollectiveLabel label() const { return {"optimizer", store_.groups()[group_].name}; }

  ParameterStore& store_;
  const size_t group_;
  const OptimizerOptions& options_;
  const StepSize& size_;
  Communicator& shards_;
  Communicator& tp_;
  const AdamWBuffers buffers_;
  const int64_t count_, first_;             // elements of the slice, and where it begins
  std::vector<const Parameter*> matrices_;  // of the group, in the order in which they lie
};

}  // namespace

void muon_step(ParameterStore& store, size_t group, const OptimizerOptions& options, const StepSize& size,
               Communicator& shards, Communicator& tp) {
  require(options.muon.has_value() && store.groups()[group].dtype == at::kFloat, ErrorCode::kInternal,
          "[optim] expected options of Muon and weights in float32");
  GroupStep(store, group, options, size, shards, tp).run();
}

}  // namespace troupe
