import { show } from '../base/text';
import { fail } from './fail';

/** Sequence indices from 0 to size-1, from numbers (negative ones count from the end) or a boolean mask. */
export function resolveIndices(indices: ArrayLike<number> | ArrayLike<boolean>, size: number): Int32Array {
  if (typeof indices[0] === 'boolean') {
    if (indices.length !== size)
      fail(`take: a mask needs one entry per sequence, ${size}, but has ${indices.length}`);
    for (let i = 0; i < size; i++)
      if (typeof indices[i] !== 'boolean')
        fail(`take: entry ${i} of a mask: expected true or false but got ${show(indices[i])}`);
    return Int32Array.from(Array(size).keys()).filter((i) => indices[i] as boolean);
  }
  const out = new Int32Array(indices.length);
  for (let j = 0; j < out.length; j++) {
    const i = indices[j] as number;
    if (!Number.isInteger(i) || i < -size || i >= size)
      fail(`sequence index ${show(i)} is outside a batch of ${size}`);
    out[j] = i < 0 ? i + size : i;
  }
  return out;
}

/** The indices that Array.slice(start, end) takes of `size` entries; no more than these are made. */
export function indexRange(size: number, start = 0, end = size): Int32Array {
  for (const [name, at] of Object.entries({ start, end }))
    if (typeof at !== 'number') fail(`slice: ${name}: expected a number but got ${show(at)}`);
  const place = (at: number): number => {
    const whole = Math.trunc(at) || 0; // NaN is 0
    return whole < 0 ? Math.max(size + whole, 0) : Math.min(whole, size);
  };
  const from = place(start);
  const out = new Int32Array(Math.max(place(end) - from, 0));
  for (let j = 0; j < out.length; j++) out[j] = from + j;
  return out;
}

/** `indices` checked to hold each of 0 .. size-1 once. */
export function permutation(indices: ArrayLike<number>, size: number): Int32Array {
  const out = resolveIndices(indices, size);
  const seen = new Uint8Array(size);
  for (const i of out) {
    if (seen[i] === 1)
      fail(`reorder: sequence ${i} appears twice; use take to repeat or leave out sequences`);
    seen[i] = 1;
  }
  if (out.length !== size)
    fail(`reorder: expected ${size} indices but got ${out.length}; use take to leave out sequences`);
  return out;
}
