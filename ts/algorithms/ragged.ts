import { TroupeError } from '../errors';

/** Any array of numbers a token or sequence column may come in. */
export type NumberArray = ArrayLike<number>;

/** Row sums of a response-token column: `out[i] = Σ_t values[offsets[i] + t]`, shape [B]. */
export function rowSums(values: NumberArray, offsets: NumberArray): Float64Array {
  const rows = offsets.length - 1;
  const out = new Float64Array(rows);
  for (let i = 0; i < rows; i++) {
    const end = offsets[i + 1] as number;
    let sum = 0;
    for (let t = offsets[i] as number; t < end; t++) sum += values[t] as number;
    out[i] = sum;
  }
  return out;
}

/** Length of the longest row. */
export function longestRow(offsets: NumberArray): number {
  let longest = 0;
  for (let i = 0; i + 1 < offsets.length; i++)
    longest = Math.max(longest, (offsets[i + 1] as number) - (offsets[i] as number));
  return longest;
}

/** Sequences that share a prompt. `groupOf[i]` is the group of sequence i; `members[g]` lists its sequences in order. */
export interface Groups {
  groupOf: Int32Array;
  members: number[][];
}

/** Groups sequences by equal uid (===), in order of first appearance. */
export function groupByUid(uid: ArrayLike<unknown>, rows: number): Groups {
  if (uid.length !== rows) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[algorithms] expected one uid per sequence (${rows}) but got ${uid.length}`,
    );
  }
  const byUid = new Map<unknown, number>();
  const members: number[][] = [];
  const groupOf = new Int32Array(rows);
  for (let i = 0; i < rows; i++) {
    let group = byUid.get(uid[i]);
    if (group === undefined) {
      group = members.length;
      byUid.set(uid[i], group);
      members.push([]);
    }
    groupOf[i] = group;
    (members[group] as number[]).push(i);
  }
  return { groupOf, members };
}
