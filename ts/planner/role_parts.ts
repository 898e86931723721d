// From what a configuration says of a role to what is planned of it.

import { readModelShape } from '../checkpoint/model_shape';
import type { SequenceBounds } from '../config/derived/sequence_bounds';
import { checkLayout } from '../engine/check_layout';
import type { EngineOptions } from '../engine/engine_options';
import { resolveMuon } from '../engine/muon_options';
import { resolveParallel } from '../engine/parallel_options';
import { configWithTower } from '../engine/role_model';
import { ConfigError } from '../errors';
import type { NativeModelConfig } from '../native/bridge';
import { checkExperts } from '../roles/check_experts';
import { parallelOptions } from '../roles/fsdp_options';
import { modelReading } from '../roles/mtp';
import { muonOptions } from '../roles/optim_options';
import { roleAdapters } from '../roles/role_adapters';
import type { RoleSettings } from '../roles/role_settings';
import type { Load, RoleLayout, RoleSpec } from './plan';
import { imageLimits, type PixelLimits } from './prompt_images';

/** Where a role runs. */
export interface Target {
  device: 'cpu' | 'cuda';
  worldSize: number;
  /** data.mm_processor_kwargs. Default: as the models say. */
  pixels?: PixelLimits;
}

/** Neighbours and stages that are called with the same sequences: with Ulysses, context and tensor parallelism and pipelines. */
export const sharingRanks = ({ ulysses, layout }: Pick<RoleSettings, 'ulysses' | 'layout'>): number =>
  ulysses * (layout.cp ?? 1) * layout.tp * layout.pp;

/** The share of `samples` responses to each of so many prompts of one rank, or of `sharing` ranks that are called with the same ones. */
export const loadPerRank = (
  { prompts, samples }: { prompts: number; samples: number },
  sharing: number,
  { prompt, response, sequence }: SequenceBounds,
  { worldSize }: Target,
): Load => ({
  sequences: Math.ceil((prompts * samples * sharing) / worldSize),
  longest: sequence,
  response,
  prompt,
  samples,
});

/**
 * An engine that is not called yet: with the shape of the role's model, of which no weight is read.
 * @throws ConfigError, TroupeError INVALID_MODEL naming the key
 */
export function roleSpec(
  role: RoleSettings,
  { device, worldSize, pixels = { min_pixels: null, max_pixels: null } }: Target,
): RoleSpec {
  const { model: modelKey, ulysses: ulyssesKey, lora: _, ...keys } = role.keys;
  const { config, stored, unusedScales } = readModelShape(
    role.model,
    role.head,
    modelKey,
    modelReading(role),
  );
  const model = configWithTower(config, role.lora.freezeVisionTower === true);
  const lora = roleAdapters(role, model);
  const muon =
    role.optim === null ? null : resolveMuon(role.name, muonOptions(role.optim.section).muon, 'float32');
  const reduction = role.reduction === 'mini_batch' ? 'mini_batch' : 'micro_batch';
  const { parallel = {}, offload } = parallelOptions(role.fsdp, role.ulysses, reduction, role.layout);
  const { fsdpSize = -1, sharding = 'no_shard', prefetch = false, reduceDtype = 'float32' } = parallel;
  return {
    name: role.name,
    model,
    ...(stored === null ? {} : { stored, unusedScales }),
    ulysses: checkedUlysses(role.ulysses, model, ulyssesKey),
    layout: checkedLayout(role, model, parallel, worldSize),
    ...(lora === null ? {} : { lora }),
    ...(model.vision === null ? {} : { images: imageLimits(role.model, model.vision, pixels) }),
    dtype: role.dtype ?? (device === 'cuda' ? 'bfloat16' : 'float32'),
    masterDtype: role.masterDtype ?? 'float32',
    ...(muon === null ? {} : { muon }),
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
      reduceDtype,
    },
    capacity: role.tokensPerRank,
    gradientCheckpointing: role.gradientCheckpointing,
    activationOffload: role.activationOffload,
    inference: null,
    update: null,
    rollouts: [],
    keys,
  };
}

/** Of a model that can be spread like this over the ranks. */
function checkedLayout(
  role: RoleSettings,
  config: NativeModelConfig,
  parallel: NonNullable<EngineOptions['parallel']>,
  worldSize: number,
): RoleLayout {
  const { keys, model: dir } = role;
  checkExperts(role, config);
  const layout = resolveParallel(keys.layout, parallel, worldSize, 'fsdp');
  checkLayout(keys.layout, layout, { config, dir });
  return { parallel: layout.parallel, pipeline: layout.pipeline };
}

/** The heads of the model must divide over the ranks that share a micro-batch. */
function checkedUlysses(ulysses: number, { numHeads }: NativeModelConfig, key: string): number {
  if (numHeads % ulysses === 0) return ulysses;
  throw new ConfigError(
    `${key}: expected a divisor of the ${numHeads} attention heads of the model, got ${ulysses}`,
    key,
  );
}
