import { freemem, totalmem } from 'node:os';
import type { NativeMemoryInfo, NativeMetrics } from '../native/bridge';
import type { UpdateShard } from './shards';

/** Metric name -> value, under verl's names. */
export type UpdateMetrics = Record<string, number>;

const GIB = 2 ** 30;

/** Sums of terms that were divided by counts of the whole mini-batch: the sum over ranks is the whole. */
const SUMS: ReadonlySet<string> = new Set([
  'loss',
  'pg_loss',
  'entropy_loss',
  'kl_loss',
  'vf_loss',
  'distillation/loss',
]);
/** The same on every rank. */
const EQUAL: ReadonlySet<string> = new Set(['lr', 'grad_norm', 'update_skipped', 'kl_coef']);
/** The least, or largest, of a rank's loss tokens. */
const EXTREMES = /^distillation\/.*_(min|max)$/;
/** Those of the routers of a mixture of experts: of the whole mini-batch, the same on every rank. */
const ROUTERS = 'moe/';
/** Those of layers that predict further tokens: as well. */
const PREDICTIONS = 'mtp_losses/';
const ofAllRanks = (name: string): boolean =>
  EQUAL.has(name) || name.startsWith(ROUTERS) || name.startsWith(PREDICTIONS);

/**
 * The metrics of each mini-batch and epoch from those of every rank. Losses are summed; what is a mean over a rank's loss tokens
 * (fractions, KL, entropy) is weighted by their number. A rank without sequences reports none of either.
 */
export function mergeRanks(
  byRank: readonly (readonly NativeMetrics[])[],
  shards: readonly UpdateShard[],
): NativeMetrics[] {
  const first = byRank[0] ?? [];
  if (byRank.length === 1) return [...first];
  return first.map((_, step) => {
    const records = byRank.map((records_) => records_[step] as NativeMetrics);
    const tokens = shards.map((shard) => shard.tokens[step % shard.tokens.length] as number);
    const merged: NativeMetrics = {};
    for (const name of new Set(records.flatMap((record) => Object.keys(record)))) {
      let sum = 0;
      let weight = 0;
      let last = 0;
      for (const [rank, record] of records.entries()) {
        const value = record[name];
        if (value === undefined) continue;
        last = value;
        sum += SUMS.has(name) ? value : value * (tokens[rank] as number);
        weight += tokens[rank] as number;
      }
      const [, extreme] = EXTREMES.exec(name) ?? [];
      if (extreme !== undefined) {
        const values = records.flatMap((record) => record[name] ?? []);
        merged[name] = extreme === 'min' ? Math.min(...values) : Math.max(...values);
        continue;
      }
      merged[name] = ofAllRanks(name) ? last : SUMS.has(name) ? sum : weight === 0 ? 0 : sum / weight;
    }
    return merged;
  });
}

/**
 * One number per metric from those of each mini-batch and epoch: the mean, or the largest (smallest) for names with 'max'
 * ('min'); the learning rate is that of the first step, and skipped updates are counted. A name with a slash, such as
 * rollout_corr/kl, is complete; others, and those of routers and of layers that predict further tokens, get the role's prefix.
 */
export function reduceMetrics(role: string, records: readonly NativeMetrics[]): UpdateMetrics {
  const names = new Set(records.flatMap((record) => Object.keys(record)));
  const out: UpdateMetrics = {};
  for (const name of names) {
    const values = records.flatMap((record) => (record[name] === undefined ? [] : [record[name]]));
    const complete = name.includes('/') && !name.startsWith(ROUTERS) && !name.startsWith(PREDICTIONS);
    out[complete ? name : `${role}/${name}`] = reduce(name, values);
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
