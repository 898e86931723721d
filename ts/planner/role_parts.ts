// From what a configuration says of a role to what is planned of it.

import { missing } from '../config/schema/field';
import { resolveLoraOptions } from '../engine/lora_options';
import { planLora } from '../engine/plan_lora';
import { ConfigError } from '../errors';
import { tensorMapping } from '../model/tensor_names';
import type { NativeModelConfig } from '../native/bridge';
import { parallelOptions } from '../roles/fsdp_options';
import type { RoleSettings } from '../roles/role_settings';
import { readModelShape } from './model_shape';
import type { Load, RoleSpec } from './plan';

/** Where a role runs. */
export interface Target {
  device: 'cpu' | 'cuda';
  worldSize: number;
}

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

/**
 * An engine that is not called yet: with the shape of the role's model, of which no weight is read.
 * @throws ConfigError, TroupeError INVALID_MODEL naming the key
 */
export function roleSpec(role: RoleSettings, { device }: Target): RoleSpec {
  const { model: modelKey, ulysses: ulyssesKey, lora: loraKey, layout: _, ...keys } = role.keys;
  const model = readModelShape(role.model, role.head, modelKey);
  checkPlanned(role);
  const reduction = role.reduction === 'mini_batch' ? 'mini_batch' : 'micro_batch';
  const { parallel, offload } = parallelOptions(role.fsdp, role.ulysses, reduction, role.layout);
  const { fsdpSize = -1, sharding = 'no_shard', prefetch = false } = parallel ?? {};
  return {
    name: role.name,
    model,
    ulysses: checkedUlysses(role.ulysses, model, ulyssesKey),
    ...loraOf(role, model, loraKey),
    dtype: role.dtype ?? (device === 'cuda' ? 'bfloat16' : 'float32'),
    strategy: sharding,
    shardSize: fsdpSize > 1 ? fsdpSize : null,
    placement: {
      offload: {
        parameters: offload?.params === true,
        gradients: offload?.grads === true,
        moments: offload?.optimizer === true,
      },
      prefetch,
      reduction,
    },
    capacity: role.tokensPerRank,
    gradientCheckpointing: role.gradientCheckpointing,
    inference: null,
    update: null,
    rollouts: [],
    keys,
  };
}

/** Layouts that share the matrices or the layers of a model are not planned yet. */
function checkPlanned({ layout, keys }: RoleSettings): void {
  for (const [size, name, what] of [
    [layout.tp, 'tensor_model_parallel_size', 'tensor parallelism'],
    [layout.cp ?? 1, 'context_parallel_size', 'context parallelism'],
    [layout.ep ?? 1, 'expert_model_parallel_size', 'expert parallelism'],
    [layout.pp, 'pipeline_model_parallel_size', 'a pipeline from a configuration'],
  ] as const) {
    if (size === 1) continue;
    const key = `${keys.layout}.${name}`;
    throw new ConfigError(`${key} ${size}: ${missing(`a plan of ${what}`)}`, key);
  }
}

/** The heads of the model must divide over the ranks that share a micro-batch. */
function checkedUlysses(ulysses: number, { numHeads }: NativeModelConfig, key: string): number {
  if (numHeads % ulysses === 0) return ulysses;
  throw new ConfigError(
    `${key}: expected a divisor of the ${numHeads} attention heads of the model, got ${ulysses}`,
    key,
  );
}

/** As the engine resolves it, from the shape of the model alone. */
function loraOf(
  { model: dir, lora: { lora } }: RoleSettings,
  config: NativeModelConfig,
  key: string,
): Pick<RoleSpec, 'lora'> {
  if (lora === undefined) return {};
  const model = { dir, config, mapping: tensorMapping(config) };
  return { lora: planLora(key, model, resolveLoraOptions(key, lora)) };
}
