#include "fsdp/sharding.h"

#include <ATen/ATen.h>

#include "core/error.h"

namespace troupe {

ShardingStrategy parse_sharding_strategy(const std::string& name) {
  if (name == "full_shard") return ShardingStrategy::kFullShard;
  if (name == "shard_grad_op") return ShardingStrategy::kShardGradOp;
  if (name == "no_shard") return ShardingStrategy::kNoShard;
  fail(ErrorCode::kInvalidArgument, "[fsdp] expected sharding full_shard, shard_grad_op or no_shard, got ",
       name);
}

int64_t shard_count(ShardingStrategy strategy, int64_t shard_size, const Communicator& comm) {
  if (strategy == ShardingStrategy::kNoShard) return 1;
  if (shard_size == 0) return comm.size();
  require(shard_size > 0 && comm.size() % shard_size == 0, ErrorCode::kInvalidArgument,
          "[fsdp] expected a number of ranks per copy that divides ", comm.size(), " ranks, got ",
          shard_size);
  return shard_size;
}

Sharding::Sharding(ParameterStore& store, std::shared_ptr<Communicator> comm, ShardingStrategy strategy,
                   int64_t shard_count)
    : store_(store), comm_(std::move(comm)), strategy_(strategy), gathered_(store.groups().size(), false) {
  const int64_t rank = comm_->rank();
  const int64_t first = rank / shard_count * shard_count;
  // Every member of a split has the same name for it, and engines are made in the same order on all ranks.
  const std::string prefix = "engine" + std::to_string(comm_->log().begun()) + "/";
  const auto part = [&](const char* kind, int64_t start, int64_t count,
                        int64_t stride) -> std::shared_ptr<Communicator> {
    if (count == comm_->size()) return comm_;
    std::vector<int64_t> ranks;
    for (int64_t i = 0; i < count; ++i) ranks.push_back(start + i * stride);
    return comm_->split(prefix + kind + std::to_string(start), ranks);
  };
  shards_ = part("shards", first, shard_count, 1);
  copies_ = part("copies", rank - first, comm_->size() / shard_count, shard_count);
  if (shard_count != 1 && shard_count != comm_->size()) comm_->barrier({"start", "engine"});
}

int64_t Sharding::bytes_sent() const {
  int64_t bytes = comm_->log().bytes_sent();
  if (shards_ != comm_) bytes += shards_->log().bytes_sent();
  if (copies_ != comm_) bytes += copies_->log().bytes_sent();
  return bytes;
}

void Sharding::abort(const std::string& reason) {
  comm_->abort(reason);
  shards_->abort(reason);
  copies_->abort(reason);
}

CollectiveLabel Sharding::label(const char* phase, size_t group) const {
  return {phase, store_.groups()[group].name};
}

void Sharding::acquire(size_t group, const char* phase) {
  if (gathered_[group]) return;
  ParameterGroup& g = store_.groups()[group];
  g.full_compute.allocate();
  shards_->all_gather(g.full_compute.tensor(),
                      g.buffers.compute.defined() ? g.buffers.compute : g.buffers.param, label(phase, group));
  gathered_[group] = true;
}

void Sharding::release(size_t group) {
  if (strategy_ == ShardingStrategy::kFullShard) free(group);
}

void Sharding::free(size_t group) {
  store_.groups()[group].full_compute.release();
  gathered_[group] = false;
}

void Sharding::acquire_gradient(size_t group) {
  ParameterGroup& g = store_.groups()[group];
  if (!g.trained()) return;
  g.full_grad.allocate();
  g.full_grad.tensor().zero_();
}

void Sharding::release_gradient(size_t group) {
  ParameterGroup& g = store_.groups()[group];
  if (!g.trained()) return;
  const at::Tensor sum = at::empty_like(g.buffers.grad);
  shards_->reduce_scatter(sum, g.full_grad.tensor(), label("backward", group));
  g.buffers.grad.add_(sum);
  g.full_grad.release();
}

void Sharding::acquire_all(const char* phase) {
  if (access() == nullptr) return;
  for (size_t group = 0; group < gathered_.size(); ++group) acquire(group, phase);
}

void Sharding::release_all() {
  if (access() == nullptr) return;
  for (size_t group = 0; group < gathered_.size(); ++group) free(group);
}

void Sharding::invalidate() {
  gathered_.assign(gathered_.size(), false);
}

void Sharding::sum_gradients() {
  if (copies_->size() == 1) return;
  for (size_t group = 0; group < gathered_.size(); ++group) {
    if (!store_.groups()[group].trained()) continue;
    copies_->all_reduce(store_.groups()[group].buffers.grad, ReduceOp::kSum, label("backward", group));
  }
}

double Sharding::grad_norm() {
  at::Tensor squares = at::zeros({static_cast<int64_t>(gathered_.size())}, at::kDouble);
  for (size_t group = 0; group < gathered_.size(); ++group) {
    if (!store_.groups()[group].trained()) continue;
    squares[static_cast<int64_t>(group)] = sum_of_squares(store_.groups()[group].buffers.grad);
  }
  shards_->all_reduce(squares, ReduceOp::kSum, {"optimizer", "gradient norm"});
  double sum = 0;
  for (int64_t group = 0; group < squares.numel(); ++group) sum += squares[group].item<double>();
  return std::sqrt(sum);
}

std::vector<int64_t> Sharding::agree(const std::vector<int64_t>& counts) {
  const at::Tensor largest = at::tensor(counts, at::kLong);
  comm_->all_reduce(largest, ReduceOp::kMax, {"start", "micro-batch counts"});
  release_all();  // what a verb that failed on this rank alone has left
  const int64_t* values = largest.const_data_ptr<int64_t>();
  return {values, values + largest.numel()};
}

at::Tensor Sharding::gather(TensorKind kind, size_t group) {
  const at::Tensor& own = store_.owned(kind, group);
  if (access() == nullptr) return own;
  const at::Tensor full = at::empty({own.numel() * shards_->size()}, own.options());
  shards_->all_gather(full, own, label("gather", group));
  return full;
}

}  // namespace troupe
