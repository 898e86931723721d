// Masked statistics with verl's conventions (utils/torch_functional.py), accumulated in double. Values
// outside the mask are never read into a sum, so a NaN there is harmless.
import type { NumberArray } from './ragged';

const MEAN_EPSILON = 1e-8;

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
