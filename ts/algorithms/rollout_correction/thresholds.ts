import { show } from '../../base/text';
import { TroupeError } from '../../errors';

/** Bounds on importance weights; `lower` null: weights above `upper` are cut off, else those outside become 0. */
export interface WeightBounds {
  lower: number | null;
  upper: number;
}

/** What is compared with a threshold: a statistic of a token, or its sum, mean or maximum over a sequence. */
export type RejectionScope = 'token' | 'sum' | 'mean' | 'max';
export type Divergence = 'k1' | 'k2' | 'k3';

/** One criterion. `lower` and `upper` bound the statistic itself: for k1 they are logarithms of the ratio bounds. */
export interface Rejection {
  name: string;
  scope: RejectionScope;
  divergence: Divergence;
  /** -Infinity where only the upper bound holds. */
  lower: number;
  upper: number;
}

const SCOPES: Readonly<Record<string, RejectionScope>> = {
  token: 'token',
  seq_sum: 'sum',
  seq_mean: 'mean',
  seq_max: 'max',
};

/** Every criterion by verl's name. */
export const REJECTION_NAMES: readonly string[] = Object.keys(SCOPES).flatMap((scope) =>
  (scope === 'seq_max' ? ['k2', 'k3'] : ['k1', 'k2', 'k3']).map((k) => `${scope}_${k}`),
);

const fail = (message: string): TroupeError =>
  new TroupeError('INVALID_ARGUMENT', `[rollout correction] ${message}`);

/** A decimal number or infinity; NaN for anything else. */
function parseNumber(text: string): number {
  const trimmed = text.trim();
  if (/^\+?inf(inity)?$/i.test(trimmed)) return Number.POSITIVE_INFINITY;
  return trimmed === '' ? Number.NaN : Number(trimmed);
}

const positive = (value: number): boolean => value > 0;

/** rolloutIsThreshold: a positive number, or 'lower_upper'. */
export function parseIsThreshold(spec: number | string): WeightBounds {
  const expected = `rolloutIsThreshold: expected a number > 0, or "lower_upper" with 0 < lower <= upper, but got ${show(spec)}`;
  if (typeof spec !== 'number' && typeof spec !== 'string') throw fail(expected);
  const parts = typeof spec === 'number' ? [spec] : spec.split('_').map(parseNumber);
  const [first = Number.NaN, second = first] = parts;
  if (parts.length > 2 || !positive(first) || !(second >= first)) throw fail(expected);
  return { lower: parts.length === 2 ? first : null, upper: second };
}

/** rolloutRs and its thresholds: criteria in order without repeats, each with its own threshold or all with one. */
export function parseRsThresholds(names: string, spec: number | string | null): Rejection[] {
  if (typeof names !== 'string') throw fail(`rolloutRs: expected a string or null but got ${show(names)}`);
  const wanted = [...new Set(split(names))];
  if (wanted.length === 0)
    throw fail(`rolloutRs: expected one or more of ${REJECTION_NAMES.join(', ')} but got ${show(names)}`);
  for (const name of wanted) {
    if (!REJECTION_NAMES.includes(name))
      throw fail(`rolloutRs: unknown criterion '${name}'; there are ${REJECTION_NAMES.join(', ')}`);
  }
  if (spec === null) {
    throw fail(
      `rolloutRsThreshold: rolloutRs ${names} needs one: a number, or "lower_upper" ratio bounds for *_k1`,
    );
  }
  if (typeof spec !== 'number' && typeof spec !== 'string')
    throw fail(`rolloutRsThreshold: expected a number or a string but got ${show(spec)}`);
  const specs = split(String(spec));
  if (specs.length !== 1 && specs.length !== wanted.length) {
    throw fail(
      `rolloutRsThreshold: expected 1 threshold for all or ${wanted.length}, one for each of ${wanted.join(', ')}, ` +
        `but got ${specs.length}: ${show(spec)}`,
    );
  }
  return wanted.map((name, i) => rejection(name, (specs.length === 1 ? specs[0] : specs[i]) as string));
}

const split = (list: string): string[] =>
  list
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '');

function rejection(name: string, spec: string): Rejection {
  const at = name.lastIndexOf('_');
  const scope = SCOPES[name.slice(0, at)] as RejectionScope;
  const divergence = name.slice(at + 1) as Divergence;
  const parts = spec.split('_').map(parseNumber);
  const [first = Number.NaN, second = first] = parts;
  if (divergence !== 'k1') {
    if (parts.length !== 1 || !positive(first)) {
      throw fail(
        `rolloutRsThreshold: ${name} has an upper bound alone: expected a number > 0 but got '${spec}'`,
      );
    }
    return { name, scope, divergence, lower: Number.NEGATIVE_INFINITY, upper: first };
  }
  // One number u bounds the ratio by 1/u and u.
  const lower = parts.length === 1 ? 1 / first : first;
  if (parts.length > 2 || !positive(lower) || !positive(second) || !(second >= lower)) {
    throw fail(
      `rolloutRsThreshold: ${name} bounds a ratio: expected "lower_upper" with 0 < lower <= upper, or one number >= 1 ` +
        `(then lower is 1/upper), but got '${spec}'`,
    );
  }
  return { name, scope, divergence, lower: Math.log(lower), upper: Math.log(second) };
}
