// What the methods of a batch are given: checked before it is taken apart.
import { RUN_LIMITS } from '../base/limits';
import { show } from '../base/text';
import { fail } from './fail';

/** @returns the length of an array, a typed array or what looks like one */
export function arrayLength(what: string, value: unknown): number {
  const length = (value as { length?: unknown } | null | undefined)?.length;
  if (typeof value === 'object' && typeof length === 'number' && Number.isInteger(length) && length >= 0)
    return length;
  fail(`${what}: expected an array but got ${show(value)}`);
}

export function checkArrays(what: string, value: unknown): void {
  if (typeof value === 'object' && value !== null && 'length' in value) return;
  fail(`${what}: expected an array of arrays but got ${show(value)}`);
}

export function checkRecord(what: string, value: unknown): void {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return;
  fail(`${what}: expected an object but got ${show(value)}`);
}

/** What would take all memory is refused before any of it is taken. */
export function checkSize(what: string, sequences: number): void {
  if (sequences <= RUN_LIMITS.sequences) return;
  fail(`${what}: expected at most ${RUN_LIMITS.sequences} sequences in a batch`);
}
