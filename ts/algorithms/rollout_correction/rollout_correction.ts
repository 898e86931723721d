import type { Batch } from '../../batch/batch';
import { requireBatch } from '../../batch/require_batch';
import type { NumberArray } from '../ragged';
import { importanceWeights } from './importance_weights';
import { offPolicyMetrics } from './off_policy';
import { correctionError, type RolloutCorrectionOptions, resolveCorrection } from './options';
import { rejectTokens } from './rejection';
import { ValidTokens } from './valid_tokens';

/** B sequences, ragged: response-token arrays [ΣR], cut by `offsets` [B+1]. */
export interface CorrectionInputs {
  offsets: NumberArray;
  responseMask: NumberArray;
  /** Under the policy that is trained. */
  logProbs: NumberArray;
  /** Under the policy that sampled. */
  rolloutLogProbs: NumberArray;
}

export interface CorrectionResult {
  /** [ΣR], 0 outside the mask; null without `rolloutIs`. Weights of tokens that were rejected stay. */
  rolloutIsWeights: Float64Array | null;
  /** [ΣR] without the rejected tokens. */
  responseMask: Uint8Array;
  /** rollout_corr/* */
  metrics: Record<string, number>;
}

/** {@link rolloutCorrection} on plain arrays, in double precision throughout. */
export function rolloutCorrectionDouble(
  inputs: CorrectionInputs,
  options: RolloutCorrectionOptions = {},
): CorrectionResult {
  const { importance, rejections } = resolveCorrection(options);
  const { offsets, responseMask } = inputs;
  checkShapes(inputs);
  let valid = 0;
  for (let t = 0; t < responseMask.length; t++) if (responseMask[t]) valid++;
  if (valid === 0) {
    throw correctionError(
      `expected at least one response token with responseMask 1 but the ${offsets.length - 1} sequences have none`,
    );
  }
  const metrics: Record<string, number> = {};
  let rolloutIsWeights: Float64Array | null = null;
  const mask = Uint8Array.from(responseMask);
  if (importance !== null || rejections.length > 0) {
    const tokens = new ValidTokens(offsets, responseMask);
    const logRatio = tokens.differences(inputs.logProbs, inputs.rolloutLogProbs);
    if (importance !== null) {
      const weighted = importanceWeights(tokens, logRatio, importance);
      rolloutIsWeights = new Float64Array(responseMask.length);
      for (let n = 0; n < tokens.count; n++)
        rolloutIsWeights[tokens.index[n] as number] = weighted.weights[n] as number;
      Object.assign(metrics, weighted.metrics);
    }
    if (rejections.length > 0) {
      const rejected = rejectTokens(tokens, logRatio, rejections);
      for (let n = 0; n < tokens.count; n++) mask[tokens.index[n] as number] = rejected.keep[n] as number;
      Object.assign(metrics, rejected.metrics);
    }
  }
  Object.assign(metrics, offPolicyMetrics(inputs, valid));
  return {
    rolloutIsWeights,
    responseMask: mask,
    metrics: Object.fromEntries(
      Object.entries(metrics).map(([name, value]) => [`rollout_corr/${name}`, value]),
    ),
  };
}

/**
 * Corrects for the difference between the policy that sampled (rolloutLogProbs) and the one that is trained (oldLogProbs):
 * adds importance weights as rolloutIsWeights, and takes rejected tokens out of responseMask. Metrics: rollout_corr/*, also
 * when nothing is corrected. bypassMode and lossType are for updates and do nothing here.
 * Formulas, criteria and presets: docs/algorithms.md.
 * @throws TroupeError INVALID_ARGUMENT for an option, a missing column, or a batch without a single token under the mask
 */
export function rolloutCorrection(
  batch: Batch,
  options: RolloutCorrectionOptions = {},
): { batch: Batch; metrics: Record<string, number> } {
  requireBatch('rolloutCorrection', batch);
  for (const column of ['oldLogProbs', 'rolloutLogProbs']) {
    if (!batch.has(column))
      throw correctionError(
        `the batch has no column '${column}': rollout correction compares the two policies`,
      );
  }
  const { rolloutIsWeights, responseMask, metrics } = rolloutCorrectionDouble(
    {
      offsets: batch.responseOffsets,
      responseMask: batch.get('responseMask'),
      logProbs: batch.get('oldLogProbs'),
      rolloutLogProbs: batch.get('rolloutLogProbs'),
    },
    options,
  );
  // Without a criterion it is the batch's own.
  let corrected =
    resolveCorrection(options).rejections.length > 0 ? batch.withResponseMask(responseMask) : batch;
  if (rolloutIsWeights !== null) {
    if (corrected.has('rolloutIsWeights')) corrected = corrected.drop('rolloutIsWeights');
    corrected = corrected.with({ rolloutIsWeights: Float32Array.from(rolloutIsWeights) }, { adopt: true });
  }
  return { batch: corrected, metrics };
}

function checkShapes({ offsets, responseMask, logProbs, rolloutLogProbs }: CorrectionInputs): void {
  const total = offsets[offsets.length - 1] ?? 0;
  for (const [name, column] of Object.entries({ responseMask, logProbs, rolloutLogProbs })) {
    if (column.length !== total)
      throw correctionError(
        `${name}: expected ${total} entries, one per response token, but got ${column.length}`,
      );
  }
}
