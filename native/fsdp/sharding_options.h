// How a model lies on the ranks of a communicator.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace troupe {

// full_shard (ZeRO-3): parameters are gathered for each block's forward and backward and freed after it.
// shard_grad_op (ZeRO-2): they are gathered once per verb or optimiser step and kept until it ends.
// no_shard: every rank holds everything, and only gradients are summed.
// Masters, gradients and moments are sharded in the first two, over all ranks or (hybrid) over `shard_size`
// neighbours, with as many replicas as there are such groups.
enum class ShardingStrategy { kFullShard, kShardGradOp, kNoShard };

// When the ranks of a replica sum their gradients. kMicroBatch: in the backward of each micro-batch; the
// full gradient of one group at a time is all that exists. kMiniBatch: once, before the optimiser step; the
// full gradients of all groups exist from the first backward on.
enum class GradientReduction { kMicroBatch, kMiniBatch };

struct ShardingOptions {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  int64_t shard_count = 1;  // ranks whose shards make up one replica
  bool prefetch = false;    // gather ahead, at most the groups of one block
  GradientReduction reduction = GradientReduction::kMicroBatch;
  // What gradients are rounded to on their way to the rank that sums them, in float32.
  at::ScalarType reduce_dtype = at::kFloat;
  bool overlap_reduction = false;  // kMicroBatch beside the backward of the next block, one block's at a time
  int64_t expert_shard_count = 1;  // shard_count of experts, among the ranks that have the same ones
};
// full_shard | shard_grad_op | no_shard, and micro_batch | mini_batch; kInvalidArgument for other names.
ShardingStrategy parse_sharding_strategy(const std::string& name);
GradientReduction parse_reduction(const std::string& name);
// Ranks that share one copy of the state in a group of `size`, where `shard_size` were asked for (0: all).
// kInvalidArgument when the copies do not come out even.
int64_t shard_count(ShardingStrategy strategy, int64_t shard_size, int64_t size);

}  // namespace troupe
