import type { ResolvedConfig } from '../config/config';
import type { EngineOptions } from '../engine/engine_options';

/** The engine's option for verl's keys; nothing where the layers that predict further tokens are not trained. */
export function mtpOptions({
  mtp,
}: Pick<ResolvedConfig['actor_rollout_ref']['model'], 'mtp'>): Pick<EngineOptions, 'mtp'> {
  if (!mtp.enable || !mtp.enable_train) return {};
  return { mtp: { lossScalingFactor: mtp.mtp_loss_scaling_factor, detachEncoder: mtp.detach_encoder } };
}
