// What the methods of a batch are given: checked before it is taken apart.
import { types } from 'node:util';
import { checkOptionNames, choiceOption, flagOption, isRecord, listLength } from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import { show } from '../base/text';
import type { Granularity } from './columns';
import { fail } from './fail';

/** @returns the length of an array, a typed array or what looks like one; of others than typed arrays no more than a batch has tokens, which nobody could fill */
export function arrayLength(what: string, value: unknown, kind = 'an array'): number {
  const length = listLength(value);
  if (length !== null && (length <= RUN_LIMITS.batchTokens || ArrayBuffer.isView(value))) return length;
  if (length !== null)
    fail(`${what}: expected at most ${RUN_LIMITS.batchTokens} entries but got an array of ${length}`);
  if (ArrayBuffer.isView(value) && !types.isDataView(value))
    fail(`${what}: expected ${kind} but its memory was transferred or given back: copy it first`);
  fail(`${what}: expected ${kind} but got ${show(value)}`);
}

/** Arrays of one sequence each: no more than a batch may have. */
export function checkArrays(what: string, value: unknown): void {
  checkSize(what, arrayLength(what, value, 'an array of arrays'));
}

/** @returns the tokens of a prompt or a response */
export function tokenCount(what: string, value: unknown): number {
  const length = arrayLength(what, value);
  if (length <= RUN_LIMITS.batchTokens) return length;
  fail(`${what}: expected at most ${RUN_LIMITS.batchTokens} tokens but got ${length}`);
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

/** An object of arguments by name, none of them mistyped. */
export function checkNamed(what: string, given: unknown, names: readonly string[]): void {
  checkRecord(what, given);
  checkOptionNames(`batch ${what}`, given, names);
}

/** What would take all memory is refused before any of it is taken. */
export function checkSize(what: string, sequences: number): void {
  if (sequences <= RUN_LIMITS.sequences) return;
  fail(`${what}: expected at most ${RUN_LIMITS.sequences} sequences in a batch`);
}

/** What an object holds under a name itself: a column may have the name of something that every object has. */
export const own = <T>(record: Readonly<Record<string, T>> | undefined, name: string): T | undefined =>
  record !== undefined && Object.hasOwn(record, name) ? record[name] : undefined;

/** What is given as columns beside prompts and responses, which are none. */
export function checkColumns(what: string, columns: unknown): void {
  checkRecord(`${what}: columns`, columns);
  for (const name of ['tokens', 'promptLens'])
    if (Object.hasOwn(columns as object, name))
      fail(`column '${name}' follows from the prompts and responses; leave it out of columns`);
}

/** All of fromRagged's arguments but the numbers in its arrays. */
export function checkRagged(given: unknown): void {
  checkNamed('fromRagged', given, ['tokens', 'promptLens', 'responseLens', 'columns']);
  const { promptLens, responseLens, columns } = given as Record<string, unknown>;
  const prompts = arrayLength('fromRagged: promptLens', promptLens);
  const responses = arrayLength('fromRagged: responseLens', responseLens);
  if (prompts !== responses)
    fail(
      `fromRagged: expected a length of each prompt and response but got ${prompts} promptLens and ${responses} responseLens`,
    );
  checkSize('fromRagged: promptLens', prompts);
  if (columns !== undefined) checkColumns('fromRagged', columns);
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
