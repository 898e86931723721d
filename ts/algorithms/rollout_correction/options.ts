import { checkOptionNames } from '../../base/check_options';
import { show } from '../../base/text';
import { TroupeError } from '../../errors';
import { parseIsThreshold, parseRsThresholds, type Rejection, type WeightBounds } from './thresholds';

/** How importance weights are formed: per token, or one per sequence. */
export type ImportanceLevel = 'token' | 'sequence';

/** verl's `algorithm.rollout_correction`, camelCased, with verl's defaults. */
export interface RolloutCorrectionOptions {
  /** Importance weights π_train/π_rollout per token or per sequence; null: none. null */
  rolloutIs?: ImportanceLevel | null;
  /** A number: weights are cut off there (TIS). 'lower_upper': weights outside become 0 (IcePop). null: no weights. 2 */
  rolloutIsThreshold?: number | string | null;
  /** Divide the weights by their mean over the batch. false */
  rolloutIsBatchNormalize?: boolean;
  /** Rejection criteria, comma-separated; a token stays when it passes all of them. null */
  rolloutRs?: string | null;
  /** One threshold for all criteria or one each, comma-separated; 'lower_upper' ratio bounds for *_k1. null */
  rolloutRsThreshold?: number | string | null;
  /** Take the rollout's log-probs as old ones and correct against the current policy in each update. false */
  bypassMode?: boolean;
  /** The loss of bypass mode. 'ppo_clip' */
  lossType?: 'ppo_clip' | 'reinforce';
}

/** Checked options, thresholds parsed. */
export interface ResolvedCorrection {
  importance: { level: ImportanceLevel; bounds: WeightBounds; batchNormalize: boolean } | null;
  rejections: Rejection[];
  bypassMode: boolean;
  lossType: 'ppo_clip' | 'reinforce';
}

const KEYS = [
  'rolloutIs',
  'rolloutIsThreshold',
  'rolloutIsBatchNormalize',
  'rolloutRs',
  'rolloutRsThreshold',
  'bypassMode',
  'lossType',
];

export const correctionError = (message: string): TroupeError =>
  new TroupeError('INVALID_ARGUMENT', `[rollout correction] ${message}`);

/** @throws TroupeError INVALID_ARGUMENT naming the option */
export function resolveCorrection(options: RolloutCorrectionOptions): ResolvedCorrection {
  checkOptionNames('rollout correction', options, KEYS);
  const { rolloutIs = null, rolloutRs = null, lossType = 'ppo_clip' } = options;
  if (rolloutIs !== null && rolloutIs !== 'token' && rolloutIs !== 'sequence')
    throw correctionError(`rolloutIs: expected token, sequence or null but got ${show(rolloutIs)}`);
  if (lossType !== 'ppo_clip' && lossType !== 'reinforce')
    throw correctionError(`lossType: expected ppo_clip or reinforce but got ${show(lossType)}`);
  const flag = (name: 'rolloutIsBatchNormalize' | 'bypassMode'): boolean => {
    const value = options[name] ?? false;
    if (typeof value !== 'boolean')
      throw correctionError(`${name}: expected true or false but got ${show(value)}`);
    return value;
  };
  const { rolloutIsThreshold: threshold = 2 } = options;
  const bounds = threshold === null ? null : parseIsThreshold(threshold);
  return {
    importance:
      rolloutIs === null || bounds === null
        ? null
        : { level: rolloutIs, bounds, batchNormalize: flag('rolloutIsBatchNormalize') },
    rejections: rolloutRs === null ? [] : parseRsThresholds(rolloutRs, options.rolloutRsThreshold ?? null),
    bypassMode: flag('bypassMode'),
    lossType,
  };
}

/** Whether bypass mode takes all tokens, each with weight 1. */
export const takesAllAlike = ({ importance, rejections, lossType }: ResolvedCorrection): boolean =>
  rejections.length === 0 && (importance === null || lossType === 'ppo_clip');
