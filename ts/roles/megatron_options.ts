// What verl's keys of its Megatron engine mean for a role.
import type { ShardingKeys } from './fsdp_options';

/** Ranks that share every matrix. */
export interface TensorSettings {
  tp: number;
  sequenceParallel: boolean;
}

export const NO_TENSOR_PARALLELISM: TensorSettings = { tp: 1, sequenceParallel: false };

export interface MegatronKeys {
  tensor_model_parallel_size: number;
  sequence_parallel: boolean;
  use_distributed_optimizer: boolean;
  param_offload: boolean;
  grad_offload: boolean;
  optimizer_offload: boolean;
}

/** How the state lies on the ranks of data parallelism: the distributed optimiser shards what shard_grad_op does. */
export function megatronSharding(keys: MegatronKeys): ShardingKeys {
  return {
    param_offload: keys.param_offload,
    grad_offload: keys.grad_offload,
    optimizer_offload: keys.optimizer_offload,
    fsdp_size: keys.use_distributed_optimizer ? -1 : 1,
    reshard_after_forward: false,
    forward_prefetch: false,
  };
}

export function megatronTensors(keys: MegatronKeys): TensorSettings {
  const tp = keys.tensor_model_parallel_size;
  return { tp, sequenceParallel: keys.sequence_parallel && tp > 1 };
}
