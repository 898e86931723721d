import { freemem, totalmem } from 'node:os';
import type { NativeMemoryInfo, NativeMetrics } from '../native/bridge';

/** Metric name -> value, under verl's names. */
export type UpdateMetrics = Record<string, number>;

const GIB = 2 ** 30;

/**
 * One number per metric from those of each mini-batch and epoch: the mean, or the largest (smallest) for names with 'max'
 * ('min'); the learning rate is that of the first step, and skipped updates are counted. A name with a slash, such as
 * rollout_corr/kl, is complete; others get the role's prefix.
 */
export function reduceMetrics(role: string, records: readonly NativeMetrics[]): UpdateMetrics {
  const names = new Set(records.flatMap((record) => Object.keys(record)));
  const out: UpdateMetrics = {};
  for (const name of names) {
    const values = records.flatMap((record) => (record[name] === undefined ? [] : [record[name]]));
    out[name.includes('/') ? name : `${role}/${name}`] = reduce(name, values);
  }
  return out;
}

function reduce(name: string, values: number[]): number {
  const sum = values.reduce((a, b) => a + b, 0);
  if (name === 'lr') return values[0] as number;
  if (name === 'update_skipped') return sum;
  if (name.includes('max')) return values.reduce((a, b) => Math.max(a, b));
  if (name.includes('min')) return values.reduce((a, b) => Math.min(a, b));
  return sum / values.length;
}

/**
 * perf/max_memory_allocated_gb: the largest rank's device memory, on cpu its peak resident set; perf/cpu_memory_used_gb: memory
 * in use on this host. GiB, as verl reports.
 */
export function memoryMetrics(infos: readonly NativeMemoryInfo[], device: 'cpu' | 'cuda'): UpdateMetrics {
  const bytes = infos.map((info) => (device === 'cpu' ? info.peakRss : info.maxAllocated));
  return {
    'perf/max_memory_allocated_gb': Math.max(...bytes) / GIB,
    'perf/cpu_memory_used_gb': (totalmem() - freemem()) / GIB,
  };
}
