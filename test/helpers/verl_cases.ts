// What verl's own functions make of inputs drawn at random (test/fixtures/random_verl), where TROUPE_TEST_VERL_PYTHON has a verl.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';

const SCRIPT = join(__dirname, '../fixtures/random_verl/draw.py');
const MAX_OUTPUT = 2 ** 29;
const EXHAUSTIVE = 20;
const TOLD = 5;

export type Matrix = number[][];

/** A seed, which alone decides what is in the case, and the error if verl raised one. */
export interface VerlCase {
  seed: number;
  error?: string;
}

/** `describe`, skipped where there is no verl to compare with. */
export const describeWithVerl: jest.Describe =
  process.env['TROUPE_TEST_VERL_PYTHON'] === undefined ? describe.skip : describe;

/**
 * `count` cases of each kind, from TROUPE_TEST_SEED on (default 0); with TROUPE_TEST_EXHAUSTIVE=1 twenty times as many.
 * @throws Error with what Python said, when it fails
 */
export function drawnByVerl<T extends Record<string, VerlCase>>(
  count: number,
  kinds: readonly (keyof T & string)[],
): { [Kind in keyof T]: T[Kind][] } {
  const first = Number(process.env['TROUPE_TEST_SEED'] ?? 0);
  const cases = process.env['TROUPE_TEST_EXHAUSTIVE'] === '1' ? EXHAUSTIVE * count : count;
  const text = execFileSync(
    process.env['TROUPE_TEST_VERL_PYTHON'] as string,
    ['-B', SCRIPT, String(first), String(cases), ...kinds],
    { encoding: 'utf8', maxBuffer: MAX_OUTPUT, stdio: ['ignore', 'pipe', 'pipe'] },
  );
  return JSON.parse(text, (_, value) => (isNumber(value) ? Number(SPECIAL[value.float]) : value));
}

const SPECIAL: Readonly<Record<string, number>> = {
  nan: Number.NaN,
  inf: Number.POSITIVE_INFINITY,
  '-inf': Number.NEGATIVE_INFINITY,
};
const isNumber = (value: unknown): value is { float: string } =>
  typeof value === 'object' && value !== null && Object.keys(value).join() === 'float';

/**
 * `compare` says what differs in a case, or nothing. There must be a case, and none of them may differ.
 * @throws Error that names the seeds of the first cases that do
 */
export async function expectAllAgree<T extends VerlCase>(
  cases: readonly T[],
  compare: (drawn: T) => string[] | Promise<string[]>,
): Promise<void> {
  expect(cases.length).toBeGreaterThan(0);
  const bad: string[] = [];
  for (const drawn of cases) {
    const differences = await compare(drawn);
    if (differences.length > 0) bad.push(`TROUPE_TEST_SEED=${drawn.seed}: ${differences.join('; ')}`);
  }
  if (bad.length === 0) return;
  throw new Error(`${bad.length} of ${cases.length} cases differ\n${bad.slice(0, TOLD).join('\n')}`);
}

/** Entries that are further apart than `relative` of `size`, by default the largest expected one; what is not finite must be the same. */
export function differing(
  what: string,
  actual: ArrayLike<number>,
  expected: ArrayLike<number>,
  relative: number,
  size = largest(expected),
): string[] {
  if (actual.length !== expected.length)
    return [`${what}: ${actual.length} entries in place of ${expected.length}`];
  const want = Array.from(expected);
  const at = want.findIndex((value, i) => {
    const got = actual[i] as number;
    return !Object.is(value, got) && !(Math.abs(got - value) <= relative * size);
  });
  return at < 0 ? [] : [`${what}[${at}] is ${actual[at]} in place of ${want[at]}`];
}

export const largest = (values: ArrayLike<number>): number =>
  Array.from(values, Math.abs)
    .filter(Number.isFinite)
    .reduce((most, value) => Math.max(most, value), 0);

/** Metrics by name; `relative` of each, or of `least` where that is more. */
export function differingMetrics(
  actual: Readonly<Record<string, unknown>>,
  expected: Readonly<Record<string, number>>,
  relative: number,
  least: number,
): string[] {
  return Object.entries(expected).flatMap(([name, want]) => {
    const got = actual[name] as number;
    const near = Math.abs(got - want) <= relative * Math.max(Math.abs(want), least);
    return near || Object.is(got, want) ? [] : [`${name} is ${got} in place of ${want}`];
  });
}

/** Rows cut to their lengths, one after the other. */
export const ragged = (rows: Matrix, lengths: readonly number[]): number[] =>
  rows.flatMap((row, i) => row.slice(0, lengths[i]));

/** Options of verl under our names. */
export const camelled = (options: object): Record<string, unknown> =>
  Object.fromEntries(
    Object.entries(options).map(([name, value]) => [
      name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()),
      value,
    ]),
  );
