import { freemem, totalmem } from 'node:os';
import type { NativeMemoryInfo, NativeMetrics, NativeModelConfig } from '../native/bridge';

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

/**
 * Floating-point operations of a forward and backward pass over sequences of these lengths: 6 N Σ L for the matrices that a
 * token meets, plus 6 Σ L² head_dim heads layers for causal attention (half of the full square), verl's estimate. Window
 * and recomputation are left out.
 */
export function trainingFlops(c: NativeModelConfig, lengths: ArrayLike<number>): number {
  const qkvo = c.hiddenSize * c.headDim * 2 * (c.numHeads + c.numKvHeads);
  let matrices = 0;
  for (let layer = 0; layer < c.numLayers; layer++) {
    matrices +=
      qkvo + (c.moe !== null && c.moeLayers[layer] ? moeSize(c, c.moe) : mlpSize(c, c.intermediateSize));
  }
  // Embedding and head count once each, as in verl; a value head is small enough to count as nothing.
  matrices += (c.head === 'lm' ? 2 : 1) * c.vocabSize * c.hiddenSize;
  let tokens = 0;
  let squares = 0;
  for (let i = 0; i < lengths.length; i++) {
    const length = lengths[i] as number;
    tokens += length;
    squares += length * length;
  }
  return 6 * matrices * tokens + 6 * squares * c.headDim * c.numHeads * c.numLayers;
}

const mlpSize = (c: NativeModelConfig, inner: number): number => c.hiddenSize * inner * (c.gatedMlp ? 3 : 2);

const moeSize = (c: NativeModelConfig, moe: NonNullable<NativeModelConfig['moe']>): number =>
  moe.topK * mlpSize(c, moe.intermediateSize) + c.hiddenSize * moe.numExperts;
