// The words for sharding, and how many ranks share one copy.
#include "fsdp/sharding_options.h"

#include "base/error.h"

namespace troupe {

ShardingStrategy parse_sharding_strategy(const std::string& name) {
  if (name == "full_shard") return ShardingStrategy::kFullShard;
  if (name == "shard_grad_op") return ShardingStrategy::kShardGradOp;
  if (name == "no_shard") return ShardingStrategy::kNoShard;
  fail(ErrorCode::kInvalidArgument, "[fsdp] expected sharding full_shard, shard_grad_op or no_shard, got ",
       name);
}

GradientReduction parse_reduction(const std::string& name) {
  if (name == "micro_batch") return GradientReduction::kMicroBatch;
  if (name == "mini_batch") return GradientReduction::kMiniBatch;
  fail(ErrorCode::kInvalidArgument, "[fsdp] expected reduction micro_batch or mini_batch, got ", name);
}

int64_t shard_count(ShardingStrategy strategy, int64_t shard_size, int64_t size) {
  if (strategy == ShardingStrategy::kNoShard) return 1;
  if (shard_size == 0 || size == 1) return size;
  require(shard_size > 0 && size % shard_size == 0, ErrorCode::kInvalidArgument,
          "[fsdp] expected a number of ranks per copy that divides ", size, " ranks, got ", shard_size);
  return shard_size;
}

}  // namespace troupe
