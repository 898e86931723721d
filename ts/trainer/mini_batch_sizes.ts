// Mini-batches of trajectories, also where they have become different numbers of sequences.
import { trajectoryRows } from '../agent/trajectory/trajectory_batch';
import type { Batch } from '../batch/batch';

/**
 * Sequences of each mini-batch of `size` trajectories. Where every one is one sequence, that is `size`; else each mini-batch has all sequences of its
 * trajectories: as many optimiser steps as there would be otherwise, of one update.
 */
export function miniBatchSizes(batch: Batch, size: number): number | number[] {
  const rows = batch.has('trajectory') ? trajectoryRows(batch) : null;
  if (rows === null || rows.length === batch.size) return size;
  const sizes: number[] = [];
  for (let first = 0; first < rows.length; first += size) {
    const mini = rows.slice(first, first + size);
    sizes.push(mini.reduce((sum, { start, end }) => sum + end - start, 0));
  }
  return sizes;
}
