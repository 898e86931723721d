import { requireNumbers } from '../base/check_options';
import type { Batch } from '../batch/batch';
import { type NumberArray, rowSums } from './ragged';

/**
 * Sums of a response-token column of rewards, [B]. A response without any token has none to carry its reward: its sum is its entry of `scores`
 * [B], where there are some. verl has it on the last column of its padding.
 */
export function responseTotals(
  values: NumberArray,
  offsets: NumberArray,
  scores?: NumberArray,
): Float64Array {
  const totals = rowSums(values, offsets);
  if (scores === undefined) return totals;
  return totals.map((total, i) => (offsets[i] === offsets[i + 1] ? (scores[i] as number) : total));
}

/** The column `score` of a batch, rounded as those of tokens are: what is equal there is equal here. undefined: there is none. */
export function tokenlessScores(batch: Batch): Float32Array | undefined {
  if (!batch.has('score')) return undefined;
  const scores: unknown = batch.get('score');
  requireNumbers('advantages', 'score', scores, batch.size);
  return Float32Array.from(scores);
}

/** Total score of each response of a batch with tokenScores, [B]. */
export const totalScores = (batch: Batch): Float64Array =>
  responseTotals(batch.get('tokenScores'), batch.responseOffsets, tokenlessScores(batch));
