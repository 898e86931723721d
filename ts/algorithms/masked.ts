// Masked statistics with verl's conventions (utils/torch_functional.py), accumulated in double. Values
// outside the mask are never read into a sum, so a NaN there is harmless.
import { TroupeError } from '../errors';
import type { NumberArray } from './ragged';

const MEAN_EPSILON = 1e-8;
const WHITEN_EPSILON = 1e-8;

/** Number of entries with a non-zero mask. */
function maskCount(mask: NumberArray): number {
  let count = 0;
  for (let i = 0; i < mask.length; i++) if (mask[i]) count++;
  return count;
}

/** Σ values over the mask. */
function maskedSum(values: NumberArray, mask: NumberArray): number {
  let sum = 0;
  for (let i = 0; i < values.length; i++) if (mask[i]) sum += values[i] as number;
  return sum;
}

/** Σ values·mask / (Σ mask + 1e-8); 0 for an empty mask. */
export function maskedMean(values: NumberArray, mask: NumberArray): number {
  return maskedSum(values, mask) / (maskCount(mask) + MEAN_EPSILON);
}

/**
 * Variance over the mask, unbiased (n-1) by default.
 * @throws TroupeError INVALID_ARGUMENT when the unbiased variance does not exist (fewer than two entries).
 */
export function maskedVar(values: NumberArray, mask: NumberArray, unbiased = true): number {
  const count = maskCount(mask);
  if (count === 0 || (unbiased && count === 1)) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[algorithms] the variance needs at least two unmasked entries but the mask has ${count}: ` +
        'use longer responses or a larger batch',
    );
  }
  const mean = maskedSum(values, mask) / (count + MEAN_EPSILON);
  let squares = 0;
  for (let i = 0; i < values.length; i++) {
    if (!mask[i]) continue;
    const centred = (values[i] as number) - mean;
    squares += centred * centred;
  }
  const variance = squares / (count + MEAN_EPSILON);
  return unbiased ? (variance * count) / (count - 1) : variance;
}

/**
 * (v - mean) / sqrt(var + 1e-8) with mean and unbiased variance over the mask. Entries outside the mask
 * are shifted and scaled too, as in verl; multiply by the mask if they matter.
 */
export function maskedWhiten(values: NumberArray, mask: NumberArray, shiftMean = true): Float64Array {
  const mean = maskedMean(values, mask);
  const scale = 1 / Math.sqrt(maskedVar(values, mask) + WHITEN_EPSILON);
  const out = new Float64Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const white = ((values[i] as number) - mean) * scale;
    out[i] = shiftMean ? white : white + mean;
  }
  return out;
}

/**
 * {@link maskedWhiten} of a response-token column that is constant on each sequence: `scores` [B] weighted by
 * `lengths` [B], the number of unmasked tokens. Same numbers without touching the tokens.
 */
export function whitenSequences(scores: Float64Array, lengths: Float64Array): Float64Array {
  let count = 0;
  let sum = 0;
  for (let i = 0; i < scores.length; i++) {
    const length = lengths[i] as number;
    count += length;
    if (length > 0) sum += length * (scores[i] as number);
  }
  if (count < 2) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[algorithms] whitening needs at least two unmasked response tokens but the batch has ${count}`,
    );
  }
  const mean = sum / (count + MEAN_EPSILON);
  let squares = 0;
  for (let i = 0; i < scores.length; i++) {
    const length = lengths[i] as number;
    if (length > 0) squares += length * ((scores[i] as number) - mean) ** 2;
  }
  const variance = ((squares / (count + MEAN_EPSILON)) * count) / (count - 1);
  const scale = 1 / Math.sqrt(variance + WHITEN_EPSILON);
  return scores.map((score) => (score - mean) * scale);
}

/** Mean, maximum and minimum over all values, or over the mask; null when there is nothing to summarise. */
export function summary(
  values: NumberArray,
  mask?: NumberArray,
): { mean: number; max: number; min: number } | null {
  let count = 0;
  let sum = 0;
  let max = Number.NEGATIVE_INFINITY;
  let min = Number.POSITIVE_INFINITY;
  for (let i = 0; i < values.length; i++) {
    if (mask && !mask[i]) continue;
    const value = values[i] as number;
    count++;
    sum += value;
    if (value > max || Number.isNaN(value)) max = value;
    if (value < min || Number.isNaN(value)) min = value;
  }
  return count === 0 ? null : { mean: sum / count, max, min };
}
