// Metrics of verl that look at the make-up of a batch rather than at single columns of it.
import { type NumberArray, rowSums } from '../../algorithms/ragged';
import type { Batch } from '../../batch/batch';
import type { Metrics } from './metrics';

/**
 * global_seqlen/{min,max,minmax_diff,balanced_min,balanced_max,mean}: tokens per rank (with Ulysses: per group of ranks). `lengths` [B] in the order of the data,
 * of which each of `ranks` would get a contiguous part; `balanced`: the parts that they really get.
 */
export function sequenceLengthMetrics(
  lengths: NumberArray,
  ranks: number,
  balanced: readonly (readonly number[])[],
): Metrics {
  const sums = (parts: readonly (readonly number[])[]): number[] =>
    parts.map((part) => part.reduce((sum, i) => sum + (lengths[i] as number), 0));
  const before = sums(contiguous(lengths.length, ranks));
  const after = sums(balanced);
  const [min, max] = [Math.min(...before), Math.max(...before)];
  return {
    'global_seqlen/min': min,
    'global_seqlen/max': max,
    'global_seqlen/minmax_diff': max - min,
    'global_seqlen/balanced_min': Math.min(...after),
    'global_seqlen/balanced_max': Math.max(...after),
    'global_seqlen/mean': before.reduce((a, b) => a + b, 0) / ranks,
  };
}

function contiguous(rows: number, parts: number): number[][] {
  const start = (part: number): number => Math.floor((part * rows) / parts);
  return Array.from({ length: parts }, (_, part) =>
    Array.from({ length: start(part + 1) - start(part) }, (_, i) => start(part) + i),
  );
}

/** A token with a smaller squared importance weight counts less in the power, with 0 not at all. */
const SMALLEST_SQUARE = 1e-10;

/**
 * variance_proxy/*, how noisy the policy gradient is, without a backward pass: a response's squared gradient norm is estimated
 * as A²·W, A its mean advantage over policy tokens and W = Σ_t (1 − 2π(a_t) + Σπ²) over them (at least 0).
 * proxy1_signal_strength: `gradNorm`² (of the update, as logged); proxy2_total_power: mean of A²W, times the squared mean importance
 * weight where there are such weights (then W without tokens whose weight is 0); proxy3_pure_noise: (proxy2 − proxy1)/(B − 1), at least 0; expected_a_squared, expected_w: means
 * of A² and of W (there with squared importance weights per token). Needs sumPiSquared, else there are none; proxies 1 and 3
 * need an update.
 */
export function varianceProxyMetrics(batch: Batch, gradNorm: number | undefined): Metrics {
  if (!batch.has('sumPiSquared') || batch.size === 0) return {};
  const mask = batch.get('responseMask');
  const count = rowSums(mask, batch.responseOffsets);
  if (!count.some((tokens) => tokens > 0)) return {};
  const logProbs = batch.get('oldLogProbs');
  const sumPiSquared = batch.get('sumPiSquared');
  const { responseOffsets } = batch;
  const masked = (value: (t: number) => number): Float64Array =>
    new Float64Array(batch.size).map((_, i) => {
      let sum = 0;
      for (let t = responseOffsets[i] as number; t < (responseOffsets[i + 1] as number); t++)
        if (mask[t]) sum += value(t);
      return sum;
    });
  const energy = (t: number): number => 1 - 2 * Math.exp(logProbs[t] as number) + (sumPiSquared[t] as number);
  const meanOf = (sums: Float64Array, i: number): number =>
    (sums[i] as number) / ((count[i] as number) + 1e-8);

  const advantages = batch.get('advantages');
  const advantage = masked((t) => advantages[t] as number);
  let w = masked(energy);
  let weight: Float64Array | null = null;
  let expectedW = w;
  if (batch.has('rolloutIsWeights')) {
    const weights = batch.get('rolloutIsWeights');
    const square = (t: number): number => (weights[t] as number) ** 2;
    weight = masked((t) => weights[t] as number);
    expectedW = masked((t) => energy(t) * square(t));
    w = masked((t) => energy(t) * Math.min(square(t) / SMALLEST_SQUARE, 1));
  }
  const mean = (value: (i: number) => number): number => {
    let sum = 0;
    for (let i = 0; i < batch.size; i++) sum += value(i);
    return sum / batch.size;
  };
  const power = mean((i) => {
    const importance = weight === null ? 1 : meanOf(weight, i) ** 2;
    return importance * meanOf(advantage, i) ** 2 * Math.max(w[i] as number, 0);
  });
  const metrics: Metrics = {
    'variance_proxy/proxy2_total_power': power,
    'variance_proxy/expected_a_squared': mean((i) => meanOf(advantage, i) ** 2),
    'variance_proxy/expected_w': mean((i) => expectedW[i] as number),
  };
  if (gradNorm === undefined) return metrics;
  metrics['variance_proxy/proxy1_signal_strength'] = gradNorm ** 2;
  if (batch.size > 1)
    metrics['variance_proxy/proxy3_pure_noise'] = Math.max(0, (power - gradNorm ** 2) / (batch.size - 1));
  return metrics;
}
