// Batches that are put end to end must have the same columns.
import { show } from '../base/text';
import type { Granularity } from './columns';
import { fail } from './fail';

interface Named {
  readonly names: string[];
  has(name: string): boolean;
  granularity(name: string): Granularity;
}

/** The first of them. @throws TroupeError INVALID_ARGUMENT */
export function checkSameColumns<B extends Named>(
  batches: readonly B[],
  isBatch: (value: unknown) => boolean,
): B {
  const given: unknown = batches;
  if (!Array.isArray(given)) fail(`concat: expected an array of batches but got ${show(batches)}`);
  const first = batches[0] ?? fail('concat: expected at least one batch');
  const other = batches.findIndex((batch) => !isBatch(batch));
  if (other >= 0) fail(`concat: expected entry ${other} to be a Batch but got ${show(batches[other])}`);
  for (const [i, batch] of batches.entries()) {
    const missing = first.names.find((name) => !batch.has(name));
    const extra = batch.names.find((name) => !first.has(name));
    if (missing !== undefined) fail(`concat: batch ${i} lacks column '${missing}', which batch 0 has`);
    if (extra !== undefined) fail(`concat: batch 0 lacks column '${extra}', which batch ${i} has`);
    const differs = first.names.find((name) => first.granularity(name) !== batch.granularity(name));
    if (differs !== undefined)
      fail(`concat: column '${differs}' has another granularity in batch ${i} than in batch 0`);
  }
  return first;
}
