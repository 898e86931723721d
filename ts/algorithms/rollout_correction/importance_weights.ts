import type { ResolvedCorrection } from './options';
import { clamp, describeRows, each, range, SAFETY_BOUND, type ValidTokens } from './valid_tokens';

type Importance = NonNullable<ResolvedCorrection['importance']>;
type Numbers = Record<string, number>;

const NORMALISATION_FLOOR = 1e-8;

/**
 * Importance weights π_train/π_rollout of the valid tokens, [N], and their metrics. Per token e^lr, or per sequence
 * e^Σlr on each of its tokens, the exponent clamped to ±20; then cut off at the threshold (truncated importance sampling,
 * Espeholt et al. 2018, arXiv 1802.01561; Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training")
 * or set to 0 outside the bounds (IcePop). Metrics describe the weights as applied, before batch normalisation; shares
 * beyond the thresholds those before it.
 */
export function importanceWeights(
  tokens: ValidTokens,
  logRatio: Float64Array,
  { level, bounds, batchNormalize }: Importance,
): { weights: Float64Array; metrics: Numbers } {
  const exponent = (x: number): number => Math.exp(clamp(x, -SAFETY_BOUND, SAFETY_BOUND));
  const sums = tokens.rowSums(logRatio);
  const raw = level === 'token' ? each(logRatio, exponent) : tokens.spread(each(sums, exponent));
  const { lower, upper } = bounds;
  const weights = each(raw, (w) =>
    lower === null ? clamp(w, Number.NEGATIVE_INFINITY, upper) : w >= lower && w <= upper ? w : 0,
  );
  const low = lower ?? 1 / upper;
  const metrics: Numbers = {
    rollout_is_mean: tokens.mean(weights),
    ...(level === 'token' ? tokenRange(tokens, raw, weights, low, upper) : sequenceRange(sums, low, upper)),
    rollout_is_std: tokens.clampedDeviation(weights, 0, upper),
    rollout_is_eff_sample_size: effectiveSampleSize(tokens, weights),
    ...sequenceMetrics(tokens, raw, weights, low, upper),
  };
  if (lower !== null) metrics['rollout_is_oob_ratio'] = tokens.share(raw, (w) => w < lower || w > upper);
  if (!batchNormalize) return { weights, metrics };
  const mean = level === 'token' ? tokens.mean(weights) : meanOfSequences(tokens, weights);
  const factor = mean > NORMALISATION_FLOOR ? mean : 1;
  metrics['rollout_is_batch_norm_factor'] = factor;
  return { weights: each(weights, (w) => w / factor), metrics };
}

function tokenRange(
  tokens: ValidTokens,
  raw: Float64Array,
  weights: Float64Array,
  low: number,
  high: number,
): Numbers {
  const { max, min } = range(weights);
  return {
    rollout_is_max: max,
    rollout_is_min: min,
    rollout_is_ratio_fraction_high: tokens.share(raw, (w) => w > high),
    rollout_is_ratio_fraction_low: tokens.share(raw, (w) => w < low),
  };
}

/** Of the sequences' log ratios before any clamping; one without valid tokens has 0. */
function sequenceRange(sums: Float64Array, low: number, high: number): Numbers {
  const { max, min, share } = describeRows(sums);
  return {
    rollout_is_max: Math.exp(Math.min(max, SAFETY_BOUND)),
    rollout_is_min: Math.exp(min),
    rollout_is_ratio_fraction_high: share((sum) => sum > Math.log(high)),
    rollout_is_ratio_fraction_low: share((sum) => sum < Math.log(low)),
  };
}

/** 1 / E (w/E w)²: 1 when all weights are equal; 0 when all of them are 0. */
function effectiveSampleSize(tokens: ValidTokens, weights: Float64Array): number {
  const mean = tokens.mean(weights) + 1e-8;
  const square = tokens.mean(weights, (w) => (w / mean) ** 2);
  return square === 0 ? 0 : 1 / square;
}

function sequenceMetrics(
  tokens: ValidTokens,
  raw: Float64Array,
  weights: Float64Array,
  low: number,
  high: number,
): Numbers {
  const applied = describeRows(tokens.rowMeans(weights));
  const before = describeRows(tokens.rowMeans(raw));
  return {
    rollout_is_seq_mean: applied.mean,
    rollout_is_seq_std: applied.std,
    rollout_is_seq_max: applied.max,
    rollout_is_seq_min: applied.min,
    rollout_is_seq_max_deviation: Math.max(applied.max - 1, 1 - applied.min),
    rollout_is_seq_fraction_high: before.share((w) => w > high),
    rollout_is_seq_fraction_low: before.share((w) => w < low),
  };
}

/** Over the sequences that have a valid token. */
function meanOfSequences(tokens: ValidTokens, weights: Float64Array): number {
  const means = tokens.rowMeans(weights).filter((_, i) => (tokens.counts[i] as number) > 0);
  return describeRows(means).mean;
}
