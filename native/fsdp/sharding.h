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
// Masters, gradients and moments are sharded in the first two.
enum class ShardingStrategy { kFullShard, kShardGradOp, kNoShard };
// kInvalidArgument for other names.
ShardingStrategy parse_sharding_strategy(const std::string& name);

// Which part of every flat buffer a rank owns.
ShardSlice shard_slice(ShardingStrategy strategy, const Communicator& comm);

// The parameters of one store, spread over the ranks of a communicator, and the collectives that bring
// them together. Gradients are summed over ranks in float32, in the order of the ranks: once per
// micro-batch when they are sharded (the full gradient of one group at a time is all that exists), once per
// mini-batch in no_shard.
//
// After a collective has failed nothing is freed here: see Communicator.
class Sharding final : public ParameterAccess {
 public:
  Sharding(ParameterStore& store, std::shared_ptr<Communicator> comm, ShardingStrategy strategy);

  // What the decoder needs; nullptr when every rank holds everything.
  ParameterAccess* access() { return strategy_ == ShardingStrategy::kNoShard ? nullptr : this; }

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

  // no_shard: sums the gradients of the mini-batch over the ranks.
  void sum_gradients();
  // sqrt of the sum of squares of all gradients of all ranks, the same on every rank.
  double grad_norm();
  // The start of a verb: the largest of each rank's counts, element by element.
  std::vector<int64_t> agree(const std::vector<int64_t>& counts);
  // The whole flat buffer of a kind, float32, on every rank.
  at::Tensor gather(TensorKind kind, size_t group);

  int64_t rank() const { return comm_->rank(); }
  void abort(const std::string& reason) { comm_->abort(reason); }

 private:
  CollectiveLabel label(const char* phase, size_t group) const;
  void free(size_t group);

  ParameterStore& store_;
  std::shared_ptr<Communicator> comm_;
  ShardingStrategy strategy_;
  std::vector<bool> gathered_;  // by group
};

}  // namespace troupe
