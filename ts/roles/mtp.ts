import type { ModelReading } from '../checkpoint/model_dir';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { draftsByModel } from '../config/derived/drafts';
import type { EngineOptions } from '../engine/engine_options';
import { ConfigError } from '../errors';
import type { PredictionUse } from '../model/prediction_layers';
import type { RoleSettings } from './role_settings';

type Mtp = Pick<EngineOptions, 'mtp'>;

/** The engine's option for verl's keys; nothing where the layers that predict further tokens are not trained. */
export function mtpOptions({
  mtp,
}: Pick<ResolvedConfig['actor_rollout_ref']['model'], 'mtp'> | Pick<ResolvedSftConfig['model'], 'mtp'>): Mtp {
  if (!mtp.enable || !mtp.enable_train) return {};
  return { mtp: { lossScalingFactor: mtp.mtp_loss_scaling_factor, detachEncoder: mtp.detach_encoder } };
}

/** Of an engine that drafts with them and does not train them; nothing where it does not draft. */
export const heldMtp = (config: ResolvedConfig): Mtp =>
  draftsByModel(config) ? { mtp: { train: false } } : {};

/** Of a role that has the actor's model and does not learn. */
export const withoutMtp = ({ mtp: _, ...others }: RoleSettings['lora']): RoleSettings['lora'] => others;

function predictionsOf({ lora: { mtp } }: RoleSettings): PredictionUse | null {
  if (mtp === undefined) return null;
  return mtp.train === false ? 'held' : 'trained';
}

/** How a role's engine reads its model's directory. */
export const modelReading = (role: RoleSettings): ModelReading => ({
  maxPositionEmbeddings: role.maxPositionEmbeddings,
  readsImages: role.readsImages,
  predictions: predictionsOf(role),
});

/** @throws ConfigError for layers that are to be trained, or drafted with, beside adapters */
export function checkMtp(role: RoleSettings): void {
  const use = predictionsOf(role);
  if (use === null || role.lora.lora === undefined) return;
  const { lora } = role.keys;
  const [key, expected] =
    use === 'trained'
      ? [`${lora}.mtp.enable_train`, 'false']
      : [`${lora}.mtp.enable_rollout`, 'false (and rollout.speculative_config.method not mtp)'];
  throw new ConfigError(
    `${key}: layers that predict further tokens are there with the whole model, not beside adapters: expected ${expected}, or ${lora}.lora_rank 0`,
    key,
  );
}
