import type { Divergence, Rejection } from './thresholds';
import { clamp, describeRows, each, range, SAFETY_BOUND, type ValidTokens } from './valid_tokens';

type Numbers = Record<string, number>;

/** Per-token divergences of the log ratio lr = log π_train − log π_rollout (Schulman 2020), lr clamped to ±20. */
const divergences: Record<Divergence, (logRatio: number) => number> = {
  k1: (lr) => -lr,
  k2: (lr) => 0.5 * lr * lr,
  k3: (lr) => Math.exp(lr) - 1 - lr,
};

/**
 * Which valid tokens stay, [N] 0/1: those that pass every criterion. A sequence criterion keeps or drops whole sequences.
 * For k1, ln(lower) ≤ −lr ≤ ln(upper): the bounds hold for π_rollout/π_train.
 */
export function rejectTokens(
  tokens: ValidTokens,
  logRatio: Float64Array,
  rejections: readonly Rejection[],
): { keep: Uint8Array; metrics: Numbers } {
  const safe = each(logRatio, (lr) => clamp(lr, -SAFETY_BOUND, SAFETY_BOUND));
  const keep = new Uint8Array(tokens.count).fill(1);
  const metrics: Numbers = {};
  for (const rejection of rejections) {
    const result = reject(tokens, each(safe, divergences[rejection.divergence]), rejection);
    for (let n = 0; n < keep.length; n++) keep[n]! &= result.keep[n] as number;
    Object.assign(metrics, result.metrics);
  }
  const rejected = rejectedRows(tokens, keep);
  metrics['rollout_rs_masked_fraction'] = tokens.mean(keep, (kept) => 1 - kept);
  metrics['rollout_rs_seq_masked_fraction'] = rejected / tokens.rows;
  return { keep, metrics };
}

function reject(
  tokens: ValidTokens,
  divergence: Float64Array,
  rejection: Rejection,
): { keep: Uint8Array; metrics: Numbers } {
  const { scope, lower, upper } = rejection;
  const perRow =
    scope === 'sum'
      ? tokens.rowSums(divergence)
      : scope === 'max'
        ? tokens.rowMaxima(divergence)
        : tokens.rowMeans(divergence);
  const statistic = scope === 'token' ? divergence : tokens.spread(perRow);
  // NaN passes no criterion.
  const keep = new Uint8Array(statistic.length);
  for (let n = 0; n < keep.length; n++) {
    const x = statistic[n] as number;
    keep[n] = x >= lower && x <= upper ? 1 : 0;
  }
  const rows = perRow.filter((_, i) => (tokens.counts[i] as number) > 0);
  const prefix = `rollout_rs_${rejection.name}`;
  const metrics = statisticMetrics(tokens, statistic, rows, rejection);
  metrics['masked_fraction'] = tokens.mean(keep, (kept) => 1 - kept);
  metrics['seq_masked_fraction'] = rejectedRows(tokens, keep) / rows.length;
  return {
    keep,
    metrics: Object.fromEntries(Object.entries(metrics).map(([name, value]) => [`${prefix}_${name}`, value])),
  };
}

/** `rows`: the statistic, or the mean of a token's, of each sequence with a valid token. */
function statisticMetrics(
  tokens: ValidTokens,
  statistic: Float64Array,
  rows: Float64Array,
  { scope, divergence, lower, upper }: Rejection,
): Numbers {
  const sequences = describeRows(rows);
  const bounded = divergence === 'k1';
  const tooHigh = (x: number): boolean => x > upper;
  const tooLow = (x: number): boolean => x < lower;
  const share =
    scope === 'token'
      ? (test: (x: number) => boolean): number => tokens.share(statistic, test)
      : sequences.share;
  const extremes = scope === 'token' ? range(statistic) : sequences;
  return {
    mean: tokens.mean(statistic),
    max: extremes.max,
    min: extremes.min,
    fraction_high: share(tooHigh),
    fraction_low: share(tooLow),
    std: tokens.clampedDeviation(statistic, bounded ? lower : 0, upper),
    seq_mean: sequences.mean,
    seq_std: sequences.std,
    seq_max: sequences.max,
    seq_min: sequences.min,
    seq_max_deviation: Math.max(Math.abs(sequences.max), Math.abs(sequences.min)),
    seq_fraction_high: sequences.share(tooHigh),
    ...(bounded ? { seq_fraction_low: sequences.share(tooLow) } : {}),
  };
}

/** Sequences that lose at least one valid token. */
function rejectedRows(tokens: ValidTokens, keep: Uint8Array): number {
  const lost = new Uint8Array(tokens.rows);
  for (let n = 0; n < keep.length; n++) if (!keep[n]) lost[tokens.row[n] as number] = 1;
  return lost.reduce((sum, bit) => sum + bit, 0);
}
