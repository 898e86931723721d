// A batch with one row per trajectory, for what is estimated over trajectories and not over their sequences.
import { Batch } from '../../batch/batch';
import { trajectoryRows } from './trajectory_batch';

/**
 * The sequences of each trajectory as one response, in order. Its columns per response token are those of `batch`, entry for entry: what
 * is computed of them there holds here. Where every trajectory has one sequence, or the batch has no trajectories, it is the batch.
 */
export function wholeTrajectories(batch: Batch): Batch {
  if (!batch.has('trajectory')) return batch;
  const rows = trajectoryRows(batch);
  if (rows.length === batch.size) return batch;
  const promptLens = rows.map(({ start }) => batch.promptLens[start] as number);
  const responseLens = rows.map(
    ({ start, end }) => (batch.responseOffsets[end] as number) - (batch.responseOffsets[start] as number),
  );
  const tokens = new Int32Array([...promptLens, ...responseLens].reduce((a, b) => a + b, 0));
  let at = 0;
  for (const { start, end } of rows) {
    tokens.set(batch.prompt(start), at);
    at += batch.promptLens[start] as number;
    for (let i = start; i < end; i++) {
      tokens.set(batch.response(i), at);
      at += batch.responseLens[i] as number;
    }
  }
  const columns: Record<string, unknown> = {};
  for (const name of batch.names) {
    if (name === 'tokens' || name === 'promptLens') continue;
    const granularity = batch.granularity(name);
    const data = batch.get(name);
    if (granularity === 'response') columns[name] = data;
    if (granularity === 'sequence') columns[name] = rows.map(({ start }) => (data as unknown[])[start]);
  }
  const granularity = Object.fromEntries(Object.keys(columns).map((name) => [name, batch.granularity(name)]));
  return Batch.fromRagged({ tokens, promptLens, responseLens, columns }, { granularity, adopt: true });
}
