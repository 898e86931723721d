// Updates over mini-batches of trajectories, also where they have become different numbers of sequences.
import { trajectoryRows } from '../agent/trajectory/trajectory_batch';
import type { Batch } from '../batch/batch';
import type { Metrics } from './metrics/metrics';

interface Sizes {
  miniBatchSize: number;
  ppoEpochs: number;
}

/**
 * `epochs` passes over the batch in mini-batches of `size` trajectories. Where every one is one sequence, that is one call of `update`; else
 * one per mini-batch, with all its sequences: an optimiser step each, as many as there would be otherwise.
 */
export async function miniBatchUpdate(
  batch: Batch,
  size: number,
  epochs: number,
  update: (part: Batch, sizes: Sizes) => Promise<Metrics>,
): Promise<Metrics> {
  const rows = batch.has('trajectory') ? trajectoryRows(batch) : null;
  if (rows === null || rows.length === batch.size)
    return await update(batch, { miniBatchSize: size, ppoEpochs: epochs });
  const done: Metrics[] = [];
  for (let epoch = 0; epoch < epochs; epoch++) {
    for (let start = 0; start < rows.length; start += size) {
      const last = Math.min(start + size, rows.length) - 1;
      const part = batch.slice(rows[start]?.start, rows[last]?.end);
      done.push(await update(part, { miniBatchSize: part.size, ppoEpochs: 1 }));
    }
  }
  return reduced(done);
}

/** Names with max (min) by the largest (smallest), all others by their mean. */
function reduced(parts: readonly Metrics[]): Metrics {
  const names = new Set(parts.flatMap((part) => Object.keys(part)));
  return Object.fromEntries(
    [...names].map((name) => {
      const values = parts.flatMap((part) => (Object.hasOwn(part, name) ? [part[name] as number] : []));
      if (name.includes('max')) return [name, Math.max(...values)];
      if (name.includes('min')) return [name, Math.min(...values)];
      return [name, values.reduce((a, b) => a + b, 0) / values.length];
    }),
  );
}
