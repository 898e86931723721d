// One number from a value per response token, as the losses of an update are aggregated.
import { maskedMean } from '../../algorithms/masked';
import type { Aggregation } from '../../algorithms/names';
import type { Batch } from '../../batch/batch';

const EPSILON = 1e-8;

/**
 * `values` [ΣR] over the policy tokens of the batch, by a `loss_agg_mode` (verl's `agg_loss`): the mean or sum of all, or the mean over
 * sequences that have policy tokens of their sums, their means, or their sums divided by `scaleFactor`. 0 without policy tokens.
 */
export function aggregate(
  values: Float32Array,
  batch: Batch,
  mode: Aggregation,
  scaleFactor: number,
): number {
  const mask = batch.get('responseMask');
  if (mode === 'token-mean') return maskedMean(values, mask);
  const { responseOffsets } = batch;
  let total = 0;
  let sequences = 0;
  for (let i = 0; i < batch.size; i++) {
    let sum = 0;
    let count = 0;
    for (let t = responseOffsets[i] as number; t < (responseOffsets[i + 1] as number); t++) {
      if (mask[t] === 0) continue;
      sum += values[t] as number;
      count++;
    }
    total += mode === 'seq-mean-token-mean' ? sum / (count + EPSILON) : sum;
    if (count > 0) sequences++;
  }
  if (mode === 'token-sum') return total;
  const mean = total / Math.max(sequences, 1);
  return mode === 'seq-mean-token-sum-norm' ? mean / scaleFactor : mean;
}
