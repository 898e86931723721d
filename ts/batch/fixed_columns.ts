// What may become of a column that is there: those of every batch stay, and none is given twice with two contents.
import { show } from '../base/text';
import { type Column, firstDifference } from './columns';
import { fail } from './fail';

/** Part of every batch. */
export const FIXED: readonly string[] = ['tokens', 'promptLens', 'responseMask'];

/** @throws TroupeError INVALID_ARGUMENT where a column that is given differs from the one that is there, saying how to replace that */
export function checkEqual(name: string, present: Column, given: Column): void {
  const at = firstDifference(present, given);
  if (at < 0) return;
  fail(
    `with: column '${name}' is there already and differs at entry ${at} (${show(present.data[at])} there, ` +
      `${show(given.data[at])} given): ${replacement(name)}`,
  );
}

function replacement(name: string): string {
  if (name === 'responseMask') return 'withResponseMask(...) replaces it';
  return FIXED.includes(name) ? 'make a new batch for other tokens' : `drop('${name}') first to replace it`;
}
