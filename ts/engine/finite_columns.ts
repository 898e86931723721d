// Refuses a batch whose per-token numbers are not numbers, before any worker sees it: no loss is defined for them.
import { badOption } from '../base/check_options';
import type { Batch } from '../batch/batch';

/**
 * Throws INVALID_ARGUMENT naming the first of the columns [ΣR] that holds NaN or an infinity at a token whose responseMask is 1, with
 * its place. Infinite advantages pass: the core skips the step, as verl does. What lies at masked tokens is never read. Columns that the batch does not have are passed over.
 */
export function checkFinite(where: string, batch: Batch, columns: readonly string[]): void {
  const mask = batch.get('responseMask');
  for (const name of columns) {
    if (!batch.has(name)) continue;
    const column = batch.get(name) as Float32Array;
    const bad = name === 'advantages' ? Number.isNaN : (value: number) => !Number.isFinite(value);
    const wrong = (value: number, at: number): boolean => mask[at] === 1 && bad(value);
    const at = column.findIndex(wrong);
    if (at < 0) continue;
    const sequence = batch.responseOffsets.findIndex((offset) => offset > at) - 1;
    const token = at - (batch.responseOffsets[sequence] as number);
    const others = column.reduce((count, value, i) => count + (wrong(value, i) ? 1 : 0), -1);
    throw badOption(
      where,
      `expected finite numbers in column '${name}' wherever responseMask is 1, got ${column[at]} at response token ${token} of sequence ` +
        `${sequence}${others > 0 ? ` and ${others} more that are not` : ''}: compute it anew, or set the mask to 0 there`,
    );
  }
}
