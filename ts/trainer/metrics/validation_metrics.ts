// Validation metrics by verl's names and numbers (`process_validation_metrics`): per data source and variable,
// mean@N and std@N over the N responses of each prompt, and bootstrap estimates of best@n, worst@n, maj@n.

import { Mt19937 } from '../../base/mt19937';
import type { Metrics } from './metrics';

const RESAMPLES = 1000;
const BOOTSTRAP_SEED = 42;

function mean(values: ArrayLike<number>): number {
  let sum = 0;
  for (let i = 0; i < values.length; i++) sum += values[i] as number;
  return sum / values.length;
}

/** Population standard deviation. */
function deviation(values: ArrayLike<number>): number {
  const centre = mean(values);
  let sum = 0;
  for (let i = 0; i < values.length; i++) {
    const apart = (values[i] as number) - centre;
    sum += apart * apart;
  }
  return Math.sqrt(sum / values.length);
}

/** Resamples of `size` out of `n`, [1000 * size]: the same for all prompts, so they are drawn once. */
class Resamples {
  private readonly drawn = new Map<string, Int32Array>();

  of(n: number, size: number): Int32Array {
    const key = `${n} ${size}`;
    let draws = this.drawn.get(key);
    if (draws === undefined) {
      const random = new Mt19937(BOOTSTRAP_SEED);
      draws = Int32Array.from({ length: RESAMPLES * size }, () => random.nextBelow(n));
      this.drawn.set(key, draws);
    }
    return draws;
  }
}

/** The largest and the smallest value of each resample; NaN where it has one. */
function extremes(draws: Int32Array, values: Float64Array): { best: Float64Array; worst: Float64Array } {
  const [best, worst] = [new Float64Array(RESAMPLES), new Float64Array(RESAMPLES)];
  const size = draws.length / RESAMPLES;
  for (let r = 0, at = 0; r < RESAMPLES; r++) {
    let high = values[draws[at] as number] as number;
    let low = high;
    for (const end = at++ + size; at < end; at++) {
      const value = values[draws[at] as number] as number;
      if (value > high || Number.isNaN(value)) high = value;
      if (value < low || Number.isNaN(value)) low = value;
    }
    best[r] = high;
    worst[r] = low;
  }
  return { best, worst };
}

/** In each resample the first response with the most frequent prediction; ties go to the prediction seen first. */
function majorities(draws: Int32Array, predictions: readonly unknown[]): Int32Array {
  const ids = new Map<unknown, number>();
  // In Python, true is 1.
  const keys = predictions.map((prediction) =>
    typeof prediction === 'boolean' ? Number(prediction) : prediction,
  );
  for (const key of keys) if (!ids.has(key)) ids.set(key, ids.size);
  const idOf = Int32Array.from(keys, (key) => ids.get(key) as number);
  const counts = new Int32Array(ids.size);
  const size = draws.length / RESAMPLES;
  const winners = new Int32Array(RESAMPLES);
  for (let r = 0; r < RESAMPLES; r++) {
    counts.fill(0);
    const start = r * size;
    let most = 0;
    for (let at = start; at < start + size; at++) {
      const id = idOf[draws[at] as number] as number;
      const count = (counts[id] as number) + 1;
      counts[id] = count;
      if (count > most) most = count;
    }
    let first = start;
    while (counts[idOf[draws[first] as number] as number] !== most) first++;
    winners[r] = draws[first] as number;
  }
  return winners;
}

/** The metrics of one prompt for each variable, of which `variables` has the values of its n responses. */
function promptMetrics(
  variables: readonly Float64Array[],
  predictions: readonly unknown[] | null,
  n: number,
  resamples: Resamples,
): Metrics[] {
  const all = variables.map((values): Metrics => ({ [`mean@${n}`]: mean(values) }));
  if (n === 1) return all;
  const sizes: number[] = [];
  for (let size = 2; size < n; size *= 2) sizes.push(size);
  sizes.push(n);
  for (const [v, values] of variables.entries()) (all[v] as Metrics)[`std@${n}`] = deviation(values);
  for (const size of sizes) {
    const draws = resamples.of(n, size);
    const winners = predictions && majorities(draws, predictions);
    for (const [v, values] of variables.entries()) {
      const metrics = all[v] as Metrics;
      const add = (name: string, results: ArrayLike<number>): void => {
        metrics[`${name}@${size}/mean`] = mean(results);
        metrics[`${name}@${size}/std`] = deviation(results);
      };
      const { best, worst } = extremes(draws, values);
      add('best', best);
      add('worst', worst);
      if (winners)
        add(
          'maj',
          best.map((_, r) => values[winners[r] as number] as number),
        );
    }
  }
  return all;
}

/** Rows with the same key, in order of first appearance. */
function rowsBy(keys: readonly unknown[], rows: readonly number[]): Map<unknown, number[]> {
  const groups = new Map<unknown, number[]>();
  for (const row of rows) {
    const group = groups.get(keys[row]);
    if (group) group.push(row);
    else groups.set(keys[row], [row]);
  }
  return groups;
}

const isNumeric = (value: unknown): value is number | boolean =>
  typeof value === 'number' || typeof value === 'boolean';

/**
 * data source -> variable -> metric. `variables` are columns over all responses; those that are not numbers (or
 * booleans) throughout a data source are left out there, `pred` serves majority votes.
 */
export function processValidationMetrics(
  dataSources: readonly string[],
  uids: readonly unknown[],
  variables: Record<string, readonly unknown[]>,
): Record<string, Record<string, Metrics>> {
  // Data and reward functions may give any name, also one that every object has something under.
  const result: Record<string, Record<string, Metrics>> = Object.create(null);
  const all = dataSources.map((_, i) => i);
  const resamples = new Resamples();
  for (const [source, rows] of rowsBy(dataSources, all)) {
    const bySource: Record<string, Metrics> = Object.create(null);
    const prompts = [...rowsBy(uids, rows).values()];
    const predictions = variables['pred'];
    const numeric = Object.entries(variables).filter(([, column]) =>
      rows.every((row) => isNumeric(column[row])),
    );
    const perPrompt = prompts.map((group) =>
      promptMetrics(
        numeric.map(([, column]) => Float64Array.from(group, (row) => Number(column[row]))),
        predictions ? group.map((row) => predictions[row]) : null,
        group.length,
        resamples,
      ),
    );
    for (const [v, [name]] of numeric.entries()) {
      const ofVariable = perPrompt.map((metrics) => metrics[v] as Metrics);
      const names = new Set(ofVariable.flatMap((metrics) => Object.keys(metrics)));
      bySource[name] = Object.fromEntries(
        [...names].map((metric) => [
          metric,
          mean(ofVariable.flatMap((m) => (metric in m ? [m[metric] as number] : []))),
        ]),
      );
    }
    result[source as string] = bySource;
  }
  return result;
}

/**
 * The same, flat: val-core/{source}/{variable}/{metric} for mean@N, best@N and maj@N (largest N; /mean and /std) of the core
 * variable, which is `acc`, or `reward` where there is no acc; val-aux/... for all others.
 */
export function validationMetrics(
  dataSources: readonly string[],
  uids: readonly unknown[],
  variables: Record<string, readonly unknown[]>,
): Metrics {
  const metrics: Metrics = {};
  for (const [source, byVariable] of Object.entries(processValidationMetrics(dataSources, uids, variables))) {
    const core = 'acc' in byVariable ? 'acc' : 'reward';
    for (const [variable, byMetric] of Object.entries(byVariable)) {
      const sizes = Object.keys(byMetric).map((metric) => Number(/@(\d+)/.exec(metric)?.[1]));
      const largest = `@${Math.max(...sizes)}`;
      for (const [metric, value] of Object.entries(byMetric)) {
        const [head = ''] = metric.split('/');
        const important = variable === core && /^(mean|best|maj)@/.test(metric) && head.endsWith(largest);
        metrics[`${important ? 'val-core' : 'val-aux'}/${source}/${variable}/${metric}`] = value;
      }
    }
  }
  return metrics;
}
