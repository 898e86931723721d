import { rolloutCorrection } from '../algorithms/rollout_correction/rollout_correction';
import type { Batch } from '../batch/batch';
import type { ResolvedConfig } from '../config/config';
import { correctionOptions } from '../config/derived/correction';
import type { Metrics } from './metrics/metrics';

/** Bypass mode: the rollout's log-probs in place of a pass over the model. */
export const bypassOldLogProbs = (batch: Batch): Batch =>
  batch.with({ oldLogProbs: batch.get('rolloutLogProbs') }, { adopt: true });

/**
 * Importance weights and rejected tokens by `algorithm.rollout_correction`, and rollout_corr/* in any case. In bypass mode the
 * updates do it, against the current policy; a batch without a single token to train on is left as it is.
 */
export function correctRollout(config: ResolvedConfig, batch: Batch, metrics: Metrics): Batch {
  if (config.algorithm.rollout_correction.bypass_mode || !batch.get('responseMask').includes(1)) return batch;
  const { bypassMode: _, lossType: __, ...options } = correctionOptions(config);
  const corrected = rolloutCorrection(batch, options);
  Object.assign(metrics, corrected.metrics);
  return corrected.batch;
}
