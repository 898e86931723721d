// Validation metrics by verl's names and numbers (`process_validation_metrics`): per data source and variable,
// mean@N and std@N over the N responses of each prompt, and bootstrap estimates of best@n, worst@n, maj@n.

import { Mt19937 } from '../../base/mt19937';
import type { Metrics } from './metrics';

const RESAMPLES = 1000;
const BOOTSTRAP_SEED = 42;

function mean(values: readonly number[]): number {
  let sum = 0;
  for (const value of values) sum += value;
  return sum / values.length;
}

/** Population standard deviation. */
function deviation(values: readonly number[]): number {
  const centre = mean(values);
  return Math.sqrt(mean(values.map((value) => (value - centre) ** 2)));
}

/** 1000 resamples of `size` out of `n`, the same ones on every call. */
function resamples(n: number, size: number): number[][] {
  const random = new Mt19937(BOOTSTRAP_SEED);
  return Array.from({ length: RESAMPLES }, () => Array.from({ length: size }, () => random.nextBelow(n)));
}

/** The value of the most frequent prediction: its first occurrence; ties go to the prediction seen first. */
function majority(
  indices: readonly number[],
  values: readonly number[],
  predictions: readonly unknown[],
): number {
  const counts = new Map<unknown, { count: number; first: number }>();
  for (const i of indices) {
    const entry = counts.get(predictions[i]);
    if (entry) entry.count++;
    else counts.set(predictions[i], { count: 1, first: i });
  }
  let best = { count: 0, first: 0 };
  for (const entry of counts.values()) if (entry.count > best.count) best = entry;
  return values[best.first] as number;
}

function promptMetrics(values: readonly number[], predictions: readonly unknown[] | null): Metrics {
  const n = values.length;
  const metrics: Metrics = { [`mean@${n}`]: mean(values) };
  if (n === 1) return metrics;
  metrics[`std@${n}`] = deviation(values);
  const sizes: number[] = [];
  for (let size = 2; size < n; size *= 2) sizes.push(size);
  sizes.push(n);
  for (const size of sizes) {
    const draws = resamples(n, size);
    const add = (name: string, reduce: (draw: number[]) => number): void => {
      const results = draws.map(reduce);
      metrics[`${name}@${size}/mean`] = mean(results);
      metrics[`${name}@${size}/std`] = deviation(results);
    };
    add('best', (draw) => Math.max(...draw.map((i) => values[i] as number)));
    add('worst', (draw) => Math.min(...draw.map((i) => values[i] as number)));
    if (predictions) add('maj', (draw) => majority(draw, values, predictions));
  }
  return metrics;
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
  const result: Record<string, Record<string, Metrics>> = {};
  const all = dataSources.map((_, i) => i);
  for (const [source, rows] of rowsBy(dataSources, all)) {
    const bySource: Record<string, Metrics> = {};
    const prompts = [...rowsBy(uids, rows).values()];
    const predictions = variables['pred'];
    for (const [name, column] of Object.entries(variables)) {
      if (!rows.every((row) => isNumeric(column[row]))) continue;
      const perPrompt = prompts.map((group) =>
        promptMetrics(
          group.map((row) => Number(column[row])),
          predictions ? group.map((row) => predictions[row]) : null,
        ),
      );
      const names = new Set(perPrompt.flatMap((metrics) => Object.keys(metrics)));
      bySource[name] = Object.fromEntries(
        [...names].map((metric) => [
          metric,
          mean(perPrompt.flatMap((m) => (metric in m ? [m[metric] as number] : []))),
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
