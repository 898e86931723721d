// What the methods of a batch are given: checked before it is taken apart.
import { types } from 'node:util';
import { checkOptionNames, choiceOption, flagOption, isRecord, listLength } from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import { show } from '../base/text';
import type { Granularity } from './columns';
import { fail } from './fail';

/** @returns the length of an array, a typed array or what looks like one */
export function arrayLength(what: string, value: unknown, kind = 'an array'): number {
  const length = listLength(value);
  if (length !== null) return length;
  if (ArrayBuffer.isView(value) && !types.isDataView(value))
    fail(`${what}: expected ${kind} but its memory was transferred or given back: copy it first`);
  fail(`${what}: expected ${kind} but got ${show(value)}`);
}

export function checkArrays(what: string, value: unknown): void {
  arrayLength(what, value, 'an array of arrays');
}

/** A whole number >= `least`. */
export function checkCount(what: string, value: unknown, least: 0 | 1): void {
  if (Number.isSafeInteger(value) && (value as number) >= least) return;
  fail(`${what}: expected a ${least === 0 ? 'non-negative' : 'positive'} integer but got ${show(value)}`);
}

/** Names of columns, each a text. */
export function checkNames(what: string, names: unknown): void {
  const other = Array.isArray(names) ? names.findIndex((name) => typeof name !== 'string') : 0;
  if (other < 0) return;
  fail(`${what}: expected an array of names of columns but got ${show(names)}`);
}

export function checkRecord(what: string, value: unknown): void {
  if (isRecord(value)) return;
  fail(`${what}: expected an object but got ${show(value)}`);
}

/** What would take all memory is refused before any of it is taken. */
export function checkSize(what: string, sequences: number): void {
  if (sequences <= RUN_LIMITS.sequences) return;
  fail(`${what}: expected at most ${RUN_LIMITS.sequences} sequences in a batch`);
}

const GRANULARITIES: readonly Granularity[] = ['token', 'response', 'sequence'];

/** Granularity of columns by name. */
export function checkGranularity(what: string, given: unknown): void {
  if (given === undefined) return;
  checkRecord(`${what}: granularity`, given);
  for (const [name, granularity] of Object.entries(given as object))
    if (granularity !== undefined)
      choiceOption('batch', `${what}: granularity.${name}`, granularity, GRANULARITIES, 'token');
}

export function checkColumnOptions(what: string, given: unknown): void {
  const where = `batch ${what}`;
  checkOptionNames(where, given, ['granularity', 'adopt']);
  const { granularity, adopt } = given as { granularity?: unknown; adopt?: unknown };
  checkGranularity(what, granularity);
  flagOption(where, 'adopt', adopt, false);
}
