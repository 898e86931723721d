import type { ModelReading } from '../checkpoint/model_dir';
import type { ResolvedConfig } from '../config/config';
import type { EngineOptions } from '../engine/engine_options';
import { ConfigError } from '../errors';
import type { RoleSettings } from './role_settings';

/** The engine's option for verl's keys; nothing where the layers that predict further tokens are not trained. */
export function mtpOptions({
  mtp,
}: Pick<ResolvedConfig['actor_rollout_ref']['model'], 'mtp'>): Pick<EngineOptions, 'mtp'> {
  if (!mtp.enable || !mtp.enable_train) return {};
  return { mtp: { lossScalingFactor: mtp.mtp_loss_scaling_factor, detachEncoder: mtp.detach_encoder } };
}

/** Of a role that has the actor's model and does not learn. */
export const withoutMtp = ({ mtp: _, ...others }: RoleSettings['lora']): RoleSettings['lora'] => others;

const trainsPredictions = ({ lora: { mtp } }: RoleSettings): boolean => mtp !== undefined;

/** How a role's engine reads its model's directory. */
export const modelReading = (role: RoleSettings): ModelReading => ({
  maxPositionEmbeddings: role.maxPositionEmbeddings,
  readsImages: role.readsImages,
  trainsPredictions: trainsPredictions(role),
});

/** @throws ConfigError for layers that are to be trained beside adapters */
export function checkMtp(role: RoleSettings): void {
  if (!trainsPredictions(role) || role.lora.lora === undefined) return;
  const key = `${role.keys.lora}.mtp.enable_train`;
  throw new ConfigError(
    `${key}: layers that predict further tokens are trained with the whole model, not beside adapters: expected false, or ${role.keys.lora}.lora_rank 0`,
    key,
  );
}
