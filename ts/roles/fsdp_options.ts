import type { EngineOptions } from '../engine/engine_options';
import type { OffloadOptions } from '../engine/offload_options';
import type { Reduction } from '../native/bridge';
import type { ModelLayout } from './megatron_options';

/** verl's keys; a role that does not learn has some of them. */
interface OffloadKeys {
  param_offload: boolean;
  optimizer_offload?: boolean;
  grad_offload?: boolean;
  offload_policy?: boolean;
}

/** What begins on the host. offload_policy means everything, as FSDP2's CPUOffloadPolicy. */
function offloadOptions(fsdp: OffloadKeys): Required<OffloadOptions> {
  const all = fsdp.offload_policy === true;
  return {
    params: all || fsdp.param_offload,
    grads: all || fsdp.grad_offload === true,
    optimizer: all || fsdp.optimizer_offload === true,
  };
}

/** verl's keys of how a model is spread over the workers, and where it lies. */
export interface ShardingKeys extends OffloadKeys {
  fsdp_size: number;
  reshard_after_forward: boolean;
  forward_prefetch: boolean;
  /** Of what learns. */
  mixed_precision?: { reduce_dtype: 'fp32' | 'float32' | 'bf16' | 'bfloat16' };
}

/** What they mean here; fsdp_size 1 is no_shard. */
export function parallelOptions(
  fsdp: ShardingKeys,
  ulysses: number,
  reduce: Reduction,
  layout: ModelLayout,
): Pick<EngineOptions, 'parallel' | 'offload'> {
  const { fsdp_size: fsdpSize, reshard_after_forward: reshard } = fsdp;
  return {
    parallel: {
      ulysses,
      ...layout,
      fsdpSize,
      ...(fsdpSize === 1 ? {} : { sharding: reshard ? 'full_shard' : 'shard_grad_op' }),
      prefetch: fsdp.forward_prefetch,
      reduce,
      ...(/^bf/.test(fsdp.mixed_precision?.reduce_dtype ?? '') ? { reduceDtype: 'bfloat16' } : {}),
    },
    offload: offloadOptions(fsdp),
  };
}
