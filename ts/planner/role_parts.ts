// What the roles of a plan have in common.

import { ConfigError } from '../errors';
import type { NativeModelConfig } from '../native/bridge';
import { offloadOptions } from '../roles/fsdp_options';
import type { Load, RoleSpec } from './plan';
import type { Placement } from './shard_memory';

/** Where a role runs. */
export interface Target {
  device: 'cpu' | 'cuda';
  worldSize: number;
}

export const dtypeOf = (dtype: 'float32' | 'bfloat16' | null, { device }: Target): 'float32' | 'bfloat16' =>
  dtype ?? (device === 'cuda' ? 'bfloat16' : 'float32');

/** The share of `sequences` of one rank (with Ulysses: of one group of ranks). */
export const loadPerRank = (
  sequences: number,
  ulysses: number,
  {
    max_prompt_length: prompt,
    max_response_length: response,
  }: { max_prompt_length: number; max_response_length: number },
  { worldSize }: Target,
): Load => ({
  sequences: Math.ceil((sequences * ulysses) / worldSize),
  longest: prompt + response,
  response,
});

/** The heads of the model must divide over the ranks that share a micro-batch. */
export function checkedUlysses(ulysses: number, { numHeads }: NativeModelConfig, key: string): number {
  if (numHeads % ulysses === 0) return ulysses;
  throw new ConfigError(
    `${key}: expected a divisor of the ${numHeads} attention heads of the model, got ${ulysses}`,
    key,
  );
}

/** As trainer/engines.ts reads verl's keys. */
export function shardingOf(fsdp: {
  fsdp_size: number;
  reshard_after_forward: boolean;
}): Pick<RoleSpec, 'strategy' | 'shardSize'> {
  if (fsdp.fsdp_size === 1) return { strategy: 'no_shard', shardSize: null };
  return {
    strategy: fsdp.reshard_after_forward ? 'full_shard' : 'shard_grad_op',
    shardSize: fsdp.fsdp_size > 1 ? fsdp.fsdp_size : null,
  };
}

export function placementOf(
  fsdp: Parameters<typeof offloadOptions>[0] & {
    forward_prefetch: boolean;
    gradient_reduction?: Placement['reduction'] | 'auto';
  },
): Placement {
  const { params, grads, optimizer } = offloadOptions(fsdp);
  return {
    offload: { parameters: params, gradients: grads, moments: optimizer },
    prefetch: fsdp.forward_prefetch,
    reduction: fsdp.gradient_reduction === 'mini_batch' ? 'mini_batch' : 'micro_batch',
  };
}
