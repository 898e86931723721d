import { badOption, checkOptionNames, flagOption, numberOption } from '../base/check_options';
import type { NativePredictionOptions } from '../native/bridge';

/** Of layers that predict further tokens: each learns the cross-entropy of the tokens that it predicts where the response mask is 1. */
export interface MtpOptions {
  /** Of the loss, which is the mean over the layers of the mean over their tokens; 0.1. */
  lossScalingFactor?: number;
  /** These layers alone learn from it: neither the decoder nor the embeddings do; default false. */
  detachEncoder?: boolean;
}

/** null: they are not trained. */
export function resolveMtp(
  where: string,
  role: string,
  { mtp, lora, optim }: { mtp?: MtpOptions; lora?: unknown; optim?: unknown },
): NativePredictionOptions | null {
  if (mtp === undefined) return null;
  const at = `${where}.mtp`;
  checkOptionNames(at, mtp, ['lossScalingFactor', 'detachEncoder']);
  if (role !== 'actor')
    throw badOption(
      where,
      `mtp: only an actor has layers that predict further tokens, got it for the ${role}`,
    );
  if (lora !== undefined || optim === null)
    throw badOption(
      where,
      `mtp: layers that predict further tokens are trained with the whole model: expected ${lora === undefined ? 'an optimiser (optim)' : 'no option lora'}`,
    );
  return {
    coef: numberOption(at, 'lossScalingFactor', mtp.lossScalingFactor, 0.1, { min: 0 }),
    detach: flagOption(at, 'detachEncoder', mtp.detachEncoder, false),
  };
}
