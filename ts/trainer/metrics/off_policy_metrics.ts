// How old the weights are that responses come from.
import { trajectoryRows } from '../../agent/trajectory/trajectory_batch';
import type { Batch } from '../../batch/batch';
import { addSummary, type Metrics } from './metrics';

/** Of the first and the last weights that a trajectory's tokens come from; null: no token was sampled. */
function versionsOf(
  version: Int32Array,
  mask: ArrayLike<unknown>,
  start: number,
  end: number,
): [number, number] | null {
  let [first, last] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (let t = start; t < end; t++) {
    if (!mask[t]) continue;
    const made = version[t] as number;
    first = Math.min(first, made);
    last = Math.max(last, made);
  }
  return last === Number.NEGATIVE_INFINITY ? null : [first, last];
}

/**
 * training/off_policy/trajectory_{spans,staleness,staleness_worst}/{mean,max,min}, as verl has them: over the trajectories of a batch with
 * the columns version and responseMask, how many versions of the weights one saw, first and last counted; and how many steps the last (worst: the first) of
 * them lies behind `version`, that of the weights which learn.
 * @param firstUpdate the step that makes the first new weights: those before it, of version 0, are as old as those of the step before it
 */
export function offPolicyMetrics(batch: Batch, version: number, firstUpdate: number): Metrics {
  const updates = (of: number): number => Math.max(of, firstUpdate - 1);
  const versions = batch.get('version') as Int32Array;
  const mask = batch.get('responseMask');
  const rows = batch.has('trajectory')
    ? trajectoryRows(batch)
    : Array.from({ length: batch.size }, (_, start) => ({ start, end: start + 1 }));
  const made = rows.flatMap(({ start, end }) => {
    const [from, to] = [batch.responseOffsets[start] as number, batch.responseOffsets[end] as number];
    const found = versionsOf(versions, mask, from, to);
    return found === null ? [] : [found];
  });
  const metrics: Metrics = {};
  const add = (name: string, of: (first: number, last: number) => number): void =>
    addSummary(
      metrics,
      `training/off_policy/trajectory_${name}`,
      made.map(([first, last]) => of(updates(first), updates(last))),
    );
  add('spans', (first, last) => last - first + 1);
  add('staleness', (_, last) => updates(version) - last);
  add('staleness_worst', (first) => updates(version) - first);
  return metrics;
}
