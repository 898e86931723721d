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
    const infinitePasses = name === 'advantages';
    const at = nextWrong(column, mask, 0, infinitePasses);
    if (at < 0) continue;
    const sequence = batch.responseOffsets.findIndex((offset) => offset > at) - 1;
    const token = at - (batch.responseOffsets[sequence] as number);
    let others = 0;
    const nextAfter = (t: number): number => nextWrong(column, mask, t + 1, infinitePasses);
    for (let t = nextAfter(at); t >= 0; t = nextAfter(t)) others++;
    throw badOption(
      where,
      `expected finite numbers in column '${name}' wherever responseMask is 1, got ${column[at]} at response token ${token} of sequence ` +
        `${sequence}${others > 0 ? ` and ${others} more that are not` : ''}: compute it anew, or set the mask to 0 there`,
    );
  }
}

const BLOCK = 4096;

/** The first place from `start` on that is wrong, or -1. A batch has hundreds of millions of them: blocks in which all is finite are passed over. */
function nextWrong(column: Float32Array, mask: Uint8Array, start: number, infinitePasses: boolean): number {
  const bits = new Int32Array(column.buffer, column.byteOffset, column.length);
  for (let from = start; from < column.length; from += BLOCK) {
    const end = Math.min(from + BLOCK, column.length);
    if (allFinite(bits, from, end)) continue;
    for (let t = from; t < end; t++) {
      const value = column[t] as number;
      if (mask[t] === 1 && (infinitePasses ? Number.isNaN(value) : !Number.isFinite(value))) return t;
    }
  }
  return -1;
}

/** All of a float's bits but its sign. */
const MAGNITUDE = 0x7fffffff;
/** What takes the exponent of a number that is not finite, and of no other, to the sign. */
const ONE_EXPONENT = 0x00800000;

/** `bits`: of floats. As whole numbers, because each float would be converted to a double first. */
function allFinite(bits: Int32Array, start: number, end: number): boolean {
  let signs = 0;
  let t = start;
  for (; t + 3 < end; t += 4) {
    signs |= ((bits[t] as number) & MAGNITUDE) + ONE_EXPONENT;
    signs |= ((bits[t + 1] as number) & MAGNITUDE) + ONE_EXPONENT;
    signs |= ((bits[t + 2] as number) & MAGNITUDE) + ONE_EXPONENT;
    signs |= ((bits[t + 3] as number) & MAGNITUDE) + ONE_EXPONENT;
  }
  for (; t < end; t++) signs |= ((bits[t] as number) & MAGNITUDE) + ONE_EXPONENT;
  return signs >= 0;
}
