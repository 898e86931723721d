#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/engine.h"
#include "model/parameter_access.h"
#include "model/parameter_store.h"

namespace troupe {

// full_shard (ZeRO-3): parameters are gathered for each block's forward and backward and freed after it.
// shard_grad_op (ZeRO-2): they are gathered once per verb or optimiser step and kept until it ends.
// no_shard: every rank holds everything, and only gradients are summed.
// Masters, gradients and moments are sharded in the first two, over all ranks or (hybrid) over `shard_size`
// neighbours, with as many copies as there are such groups.
enum class ShardingStrategy { kFullShard, kShardGradOp, kNoShard };
// kInvalidArgument for other names.
ShardingStrategy parse_sharding_strategy(const std::string& name);

// Ranks that share one copy of the state: all, `shard_size` when that is not 0, one for no_shard.
// kInvalidArgument when the copies do not come out even.
int64_t shard_count(ShardingStrategy strategy, int64_t shard_size, const Communicator& comm);

// The parameters of one store, spread over the ranks of a communicator, and the collectives that bring
// them together. Gradients are summed over ranks in float32, in the order of the ranks: within the ranks
// that share a copy once per micro-batch (the full gradient of one group at a time is all that exists),
// between copies once per mini-batch.
//
// After a collective has failed nothing is freed here: see Communicator.
class Sharding final : public ParameterAccess {
 public:
  // Every rank at the same time, with the same arguments. shard_count: see above.
  Sharding(ParameterStore& store, std::shared_ptr<Communicator> comm, ShardingStrategy strategy,
           int64_t shard_count);

  // What the decoder needs; nullptr when every rank holds everything.
  ParameterAccess* access() { return shards_->size() == 1 ? nullptr : this; }

  void acquire(size_t group, const char* phase) override;
  void release(size_t group) override;
  void acquire_gradient(size_t group) override;
  void release_gradient(size_t group) override;

  // For verbs that use all parameters at once.
  void acquire_all(const char* phase);
  // The end of a verb: no parameter stays gathered.
  void release_all();
  // The masters have changed.
  void invalidate();

  // Sums the gradients of the mini-batch over the copies.
  void sum_gradients();
  // sqrt of the sum of squares of all gradients of all ranks, the same on every rank.
  double grad_norm();
  // The start of a verb: the largest of each rank's counts, element by element.
  std::vector<int64_t> agree(const std::vector<int64_t>& counts);
  // The whole flat buffer of a kind, float32, on every rank.
  at::Tensor gather(TensorKind kind, size_t group);

  // In place: the tensor of rank 0 on every rank.
  void broadcast(const at::Tensor& tensor, const CollectiveLabel& label) {
    comm_->broadcast(tensor, 0, label);
  }

  int64_t rank() const { return comm_->rank(); }
  int64_t bytes_sent() const;
  void abort(const std::string& reason);

 private:
  CollectiveLabel label(const char* phase, size_t group) const;
  void free(size_t group);

  ParameterStore& store_;
  std::shared_ptr<Communicator> comm_;    // all ranks
  std::shared_ptr<Communicator> shards_;  // the ranks that share a copy with this one
  std::shared_ptr<Communicator> copies_;  // the ranks that hold the same part of the other copies
  ShardingStrategy strategy_;
  std::vector<bool> gathered_;  // by group
};

}  // namespace troupe
