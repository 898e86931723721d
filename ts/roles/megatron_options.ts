// What verl's keys of its Megatron engine mean for a role.
import { expertRanks } from '../config/derived/expert_ranks';
import type { EngineOptions } from '../engine/engine_options';
import type { ShardingKeys } from './fsdp_options';

/** How ranks share a model: the fields are those of {@link EngineOptions.parallel}. */
export type ModelLayout = Pick<
  NonNullable<EngineOptions['parallel']>,
  'vpp' | 'cp' | 'ep' | 'firstStageLayers' | 'lastStageLayers' | 'countEmbedding' | 'countHead'
> & { tp: number; sequenceParallel: boolean; pp: number };

export const WHOLE_MODEL: ModelLayout = { tp: 1, sequenceParallel: false, pp: 1 };

export interface MegatronKeys {
  tensor_model_parallel_size: number;
  pipeline_model_parallel_size: number;
  virtual_pipeline_model_parallel_size: number | null;
  context_parallel_size: number;
  expert_model_parallel_size: number;
  expert_tensor_parallel_size: number | null;
  sequence_parallel: boolean;
  use_distributed_optimizer: boolean;
  use_megatron_fsdp: boolean;
  param_offload: boolean;
  grad_offload?: boolean;
  optimizer_offload?: boolean;
  override_transformer_config: {
    num_layers_in_first_pipeline_stage: number | null;
    num_layers_in_last_pipeline_stage: number | null;
    account_for_embedding_in_pipeline_split: boolean;
    account_for_loss_in_pipeline_split: boolean;
  };
}

/** How the state lies on the ranks of data parallelism: the distributed optimiser shards what shard_grad_op does, Megatron-FSDP what full_shard does. */
export function megatronSharding(keys: MegatronKeys): ShardingKeys {
  return {
    param_offload: keys.param_offload,
    grad_offload: keys.grad_offload ?? false,
    optimizer_offload: keys.optimizer_offload ?? false,
    fsdp_size: keys.use_distributed_optimizer ? -1 : 1,
    reshard_after_forward: keys.use_megatron_fsdp,
    forward_prefetch: false,
  };
}

export function megatronLayout(keys: MegatronKeys): ModelLayout {
  const { tensor_model_parallel_size: tp, pipeline_model_parallel_size: pp } = keys;
  const matrices = {
    tp,
    sequenceParallel: keys.sequence_parallel && tp > 1,
    pp,
    cp: keys.context_parallel_size,
    ep: expertRanks(keys),
  };
  if (pp === 1) return matrices;
  const ends = keys.override_transformer_config;
  const [first, last] = [ends.num_layers_in_first_pipeline_stage, ends.num_layers_in_last_pipeline_stage];
  return {
    ...matrices,
    vpp: keys.virtual_pipeline_model_parallel_size ?? 1,
    ...(first === null ? {} : { firstStageLayers: first }),
    ...(last === null ? {} : { lastStageLayers: last }),
    countEmbedding: ends.account_for_embedding_in_pipeline_split,
    countHead: ends.account_for_loss_in_pipeline_split,
  };
}
