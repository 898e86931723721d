// PF-PPO, policy filtration (arXiv 2409.06957): after the advantages are known, the update sees a resample of the batch in which
// responses with a telling reward are more frequent. As verl's `compute_pf_ppo_reweight_data`.
import { TroupeError } from '../errors';
import type { NumberArray } from './ragged';

export interface PfPpoOptions {
  /** pow: |s|^weightPow; max_min: 1 for the best and worst scores of the batch, else 0; max_random: 0.4 for the best, else 0.1. */
  method: 'pow' | 'max_min' | 'max_random';
  /** Exponent of `pow`, 2. */
  weightPow?: number;
}

/** Keeps every response possible, however small its weight. */
const WEIGHT_EPSILON = 1e-8;

/** Unnormalised probability of each response [B] from the scores [B] of the whole batch. */
export function pfPpoWeights(scores: NumberArray, { method, weightPow = 2 }: PfPpoOptions): Float64Array {
  let max = Number.NEGATIVE_INFINITY;
  let min = Number.POSITIVE_INFINITY;
  for (let i = 0; i < scores.length; i++) {
    max = Math.max(max, scores[i] as number);
    min = Math.min(min, scores[i] as number);
  }
  const weights: Record<PfPpoOptions['method'], (score: number) => number> = {
    pow: (score) => Math.abs(score) ** weightPow,
    max_min: (score) => (score === max || score === min ? 1 : 0),
    max_random: (score) => (score === max ? 0.4 : 0.1),
  };
  if (!Object.hasOwn(weights, method)) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[pf_ppo] expected reweight_method pow, max_min or max_random but got '${String(method)}'`,
    );
  }
  return Float64Array.from(scores, (score) => weights[method](score) + WEIGHT_EPSILON);
}

/**
 * Which responses the update sees, [B]: drawn with replacement in proportion to {@link pfPpoWeights}. `uniform` gives the
 * random numbers, 0 <= x < 1, one per draw.
 */
export function pfPpoResample(scores: NumberArray, options: PfPpoOptions, uniform: () => number): Int32Array {
  const cumulative = pfPpoWeights(scores, options);
  for (let i = 1; i < cumulative.length; i++)
    cumulative[i] = (cumulative[i] as number) + (cumulative[i - 1] as number);
  const total = cumulative[cumulative.length - 1] ?? 0;
  return Int32Array.from({ length: scores.length }, () => firstAbove(cumulative, uniform() * total));
}

/** Index of the first entry of an ascending array that is larger than `value`; the last index when none is. */
function firstAbove(ascending: Float64Array, value: number): number {
  let low = 0;
  let high = ascending.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((ascending[middle] as number) > value) high = middle;
    else low = middle + 1;
  }
  return low;
}
