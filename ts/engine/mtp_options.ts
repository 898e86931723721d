import { badOption, checkOptionNames, flagOption, numberOption } from '../base/check_options';
import type { PredictionUse } from '../model/prediction_layers';
import type { NativePredictionOptions } from '../native/bridge';

/** Of layers that predict further tokens: each learns the cross-entropy of the tokens that it predicts where the response mask is 1. */
export interface MtpOptions {
  /** Default true. false: they stay as they are, and a rollout with `speculative.method` mtp drafts with them. */
  train?: boolean;
  /** Of the loss, which is the mean over the layers of the mean over their tokens; 0.1. */
  lossScalingFactor?: number;
  /** These layers alone learn from it: neither the decoder nor the embeddings do; default false. */
  detachEncoder?: boolean;
}

/** `training` null: they are held alone. */
export interface ResolvedMtp {
  training: NativePredictionOptions | null;
}

/** How a model is read for it. */
export const predictionUse = (mtp: ResolvedMtp | null): PredictionUse | null =>
  mtp === null ? null : mtp.training === null ? 'held' : 'trained';

/** null: the engine has none of them. */
export function resolveMtp(
  where: string,
  role: string,
  { mtp, lora, optim }: { mtp?: MtpOptions; lora?: unknown; optim?: unknown },
): ResolvedMtp | null {
  if (mtp === undefined) return null;
  const at = `${where}.mtp`;
  checkOptionNames(at, mtp, ['train', 'lossScalingFactor', 'detachEncoder']);
  if (role !== 'actor')
    throw badOption(
      where,
      `mtp: only an actor has layers that predict further tokens, got it for the ${role}`,
    );
  const train = flagOption(at, 'train', mtp.train, true);
  if (lora !== undefined)
    throw badOption(
      where,
      'mtp: layers that predict further tokens are there with the whole model alone: expected no option lora',
    );
  if (train && optim === null)
    throw badOption(
      where,
      'mtp: layers that predict further tokens are trained with the whole model: expected an optimiser (optim), or train: false',
    );
  const training = {
    coef: numberOption(at, 'lossScalingFactor', mtp.lossScalingFactor, 0.1, { min: 0 }),
    detach: flagOption(at, 'detachEncoder', mtp.detachEncoder, false),
  };
  return { training: train ? training : null };
}
