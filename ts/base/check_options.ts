import { types } from 'node:util';
import { TroupeError } from '../errors';
import { MAX_TEMPERATURE, MIN_TEMPERATURE } from './limits';
import { nearestName } from './nearest_name';
import { printable } from './printable';
import { show } from './text';

export const badOption = (where: string, message: string): TroupeError =>
  new TroupeError('INVALID_ARGUMENT', `[${where}] ${message}`);

/**
 * Options are read by name: of an array, a Map or a promise that nobody awaited nothing would be found, and every default taken.
 * @throws TroupeError INVALID_ARGUMENT
 */
export function requireOptions(where: string, given: unknown): asserts given is object {
  if (types.isPromise(given))
    throw badOption(where, 'expected an options object but got a promise: await it first');
  if (isRecord(given)) return;
  throw badOption(where, `expected an options object but got ${kindOf(given)}`);
}

/** By its tag: objects of another realm are as good. */
const tagOf = (value: unknown): string => Object.prototype.toString.call(value).slice(8, -1);

/** Whether something holds values by name: not an array, a Map, a date, an error or a promise. */
export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && ['Object', 'Module'].includes(tagOf(value));

const kindOf = (value: unknown): string =>
  typeof value !== 'object' || value === null || Array.isArray(value) ? show(value) : `a ${tagOf(value)}`;

/** Refuses option names that do not exist, naming a near one that does: a mistyped option must never be ignored. */
export function checkOptionNames(where: string, given: unknown, known: readonly string[]): void {
  requireOptions(where, given);
  for (const name of Object.keys(given)) {
    if (known.includes(name)) continue;
    const nearest = nearestName(known, name);
    const hint = nearest === null ? '' : ` did you mean '${nearest}'?`;
    throw badOption(
      where,
      `unknown option '${printable(name, { max: 100 })}';${hint} Options: ${known.join(', ')}`,
    );
  }
}

/** A finite number within bounds, or the default when it is undefined. */
export function numberOption(
  where: string,
  name: string,
  value: unknown,
  fallback: number,
  rule: { integer?: boolean; min?: number; above?: number; max?: number; or?: string } = {},
): number {
  if (value === undefined) return fallback;
  const ok =
    typeof value === 'number' &&
    Number.isFinite(value) &&
    (!rule.integer || Number.isSafeInteger(value)) &&
    (rule.min === undefined || value >= rule.min) &&
    (rule.above === undefined || value > rule.above) &&
    (rule.max === undefined || value <= rule.max);
  if (ok) return value;
  // Where the bounds say nothing of it.
  const most =
    rule.integer && rule.max === undefined && Number.isInteger(value)
      ? ` (of at most ${Number.MAX_SAFE_INTEGER})`
      : '';
  throw badOption(
    where,
    `${name}: expected ${rule.or ?? ''}${rule.integer ? 'an integer' : 'a number'}${boundsOf(rule)}${most} but got ${show(value)}`,
  );
}

function boundsOf({ min, above, max }: { min?: number; above?: number; max?: number }): string {
  if (min !== undefined && max !== undefined) return ` from ${min} to ${max}`;
  const lower = min !== undefined ? ` >= ${min}` : above !== undefined ? ` > ${above}` : '';
  const upper = max === undefined ? '' : `${lower === '' ? '' : ' and'} <= ${max}`;
  return `${lower}${upper}`;
}

/** An integer from 1 to `most`, or the default when there is one and the value is undefined. */
export function countOption(
  where: string,
  name: string,
  value: unknown,
  most: number,
  fallback?: number,
): number {
  if (value === undefined && fallback === undefined)
    throw badOption(where, `${name}: expected an integer from 1 to ${most}, but it is not given`);
  return numberOption(where, name, value, fallback ?? 1, { integer: true, min: 1, max: most });
}

/** What logits are divided by; `greedy`: 0 may be given. */
export function temperatureOption(where: string, value: unknown, greedy: boolean): number {
  if (greedy && value === 0) return 0;
  return numberOption(where, 'temperature', value, 1, {
    min: MIN_TEMPERATURE,
    max: MAX_TEMPERATURE,
    ...(greedy ? { or: '0 (greedy), or ' } : {}),
  });
}

export function choiceOption<const T extends string>(
  where: string,
  name: string,
  value: unknown,
  choices: readonly T[],
  fallback: T,
): T {
  if (value === undefined) return fallback;
  const found = choices.find((choice) => choice === value);
  if (found === undefined)
    throw badOption(where, `${name}: expected one of ${choices.join(', ')} but got ${show(value)}`);
  return found;
}

export function flagOption(where: string, name: string, value: unknown, fallback: boolean): boolean {
  if (value === undefined) return fallback;
  if (typeof value !== 'boolean')
    throw badOption(where, `${name}: expected true or false but got ${show(value)}`);
  return value;
}

/** Whether an array's memory was transferred: it is empty then, as if it had never held anything. */
export function isDetached({ buffer }: ArrayBufferView): boolean {
  if (buffer.byteLength > 0) return false;
  try {
    return new Uint8Array(buffer).length > 0;
  } catch {
    return true;
  }
}

/**
 * Length of an array, a typed array or what looks like one; null: it is none, or its memory was transferred. Nothing needs to be made for
 * the length that an object merely claims: its last entry must be there.
 */
export function listLength(value: unknown): number | null {
  if (typeof value !== 'object' || value === null || types.isDataView(value)) return null;
  const view = ArrayBuffer.isView(value);
  if (view && isDetached(value)) return null;
  const { length } = value as { length?: unknown };
  if (!Number.isInteger(length) || (length as number) < 0) return null;
  const known = view || Array.isArray(value) || length === 0;
  return known || Number(length) - 1 in value ? (length as number) : null;
}

/**
 * Numbers in an array, a typed array or what looks like one. Typed arrays are not looked through; of others every entry is.
 * `length`: how many there must be.
 * @throws TroupeError INVALID_ARGUMENT naming the entry
 */
export function requireNumbers(
  where: string,
  name: string,
  value: unknown,
  length?: number,
): asserts value is ArrayLike<number> {
  const typed = ArrayBuffer.isView(value) && !types.isDataView(value);
  if (!typed && !isListOfNumbers(where, name, value))
    throw badOption(where, `${name}: expected an array of numbers but got ${show(value)}`);
  if (types.isBigInt64Array(value) || types.isBigUint64Array(value))
    throw badOption(
      where,
      `${name}: expected numbers but got bigints: Float32Array.from(x, Number) converts them`,
    );
  if (typed && isDetached(value))
    throw badOption(
      where,
      `${name}: expected numbers but the memory of the array was transferred: copy it first`,
    );
  const count = (value as ArrayLike<number>).length;
  if (length !== undefined && count !== length)
    throw badOption(where, `${name}: expected ${length} entries, as the other arrays, but got ${count}`);
}

function isListOfNumbers(where: string, name: string, value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  const list = value as ArrayLike<unknown>;
  const { length } = list;
  if (!Number.isSafeInteger(length) || length < 0) return false;
  for (let i = 0; i < length; i++)
    if (typeof list[i] !== 'number')
      throw badOption(where, `${name}[${i}]: expected a number but got ${show(list[i])}`);
  return true;
}

/** What programs in JavaScript pass is whatever they have. @throws TroupeError INVALID_ARGUMENT */
export function functionOption(where: string, name: string, value: unknown): void {
  if (value !== undefined && typeof value !== 'function')
    throw badOption(where, `${name}: expected a function but got ${show(value)}`);
}

/** @param what what lies there, with its article @throws TroupeError INVALID_ARGUMENT, also for an empty one, which would be the working directory */
export function requirePath(where: string, what: string, value: unknown): asserts value is string {
  if (typeof value !== 'string' || value === '')
    throw badOption(where, `expected the path of ${what} but got ${show(value)}`);
}

/** @throws TroupeError INVALID_ARGUMENT, also for a number that a text would be equal to only when it is written out */
export function requireText(where: string, name: string, value: unknown): asserts value is string {
  if (typeof value !== 'string') throw badOption(where, `${name}: expected a text but got ${show(value)}`);
}

/** @throws TroupeError INVALID_ARGUMENT for what is no array of texts */
export function requireTexts(
  where: string,
  name: string,
  value: unknown,
): asserts value is readonly string[] {
  if (!Array.isArray(value) || !value.every((text) => typeof text === 'string'))
    throw badOption(where, `${name}: expected an array of texts but got ${show(value)}`);
}

/** What is registered: a function under a name. @throws TroupeError INVALID_ARGUMENT */
export function requireNamed(where: string, name: unknown, fn: unknown): void {
  if (typeof name !== 'string' || name === '')
    throw badOption(where, `expected a name but got ${show(name)}`);
  if (typeof fn !== 'function')
    throw badOption(where, `expected a function for '${printable(name)}' but got ${show(fn)}`);
}
