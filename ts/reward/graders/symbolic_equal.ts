import type { ComputeEngine, Expression } from '@cortex-js/compute-engine';
import { tidy } from './prime_answer';

/** Points at which expressions with variables are compared, and how many of them must be defined. */
const [POINTS, NEEDED] = [8, 3];
/** Relative tolerance between exact expressions, and where one is a decimal number, as in verl. */
const [EXACT, DECIMAL] = [1e-9, 1e-4];

const OPENERS = ['(', '[', '{', '\\lbrace'];
const CLOSERS = [')', ']', '}', '\\rbrace'];

/** `text` cut at each `separator` that stands outside all brackets. */
function splitOutside(text: string, separator: string): string[] {
  const parts: string[] = [];
  let [depth, start] = [0, 0];
  const tokens = /\\[a-zA-Z]+|\\.|[^\\]/gs;
  for (const { 0: token, index } of text.matchAll(tokens)) {
    if (OPENERS.includes(token)) depth++;
    else if (CLOSERS.includes(token)) depth--;
    else if (token === separator && depth === 0) {
      parts.push(text.slice(start, index));
      start = index + token.length;
    }
  }
  return [...parts, text.slice(start)].map((part) => part.trim());
}

interface Sequence {
  brackets: string;
  items: string[];
}

/** A tuple, interval, vector, set or bare list of at least two, or a set of one; null for a single expression. */
function asSequence(text: string): Sequence | null {
  const bracketed = /^(\(|\[|\\lbrace)(.*?)(\)|\]|\\rbrace)$/s.exec(text);
  const bare = splitOutside(text, ',');
  if (bare.length > 1) return { brackets: '', items: bare };
  if (bracketed === null) return null;
  const [, open, inner, close] = bracketed as unknown as [string, string, string, string];
  const items = splitOutside(inner, ',');
  const set = open === '\\lbrace';
  return items.length > 1 || set ? { brackets: set ? 'set' : open + close, items } : null;
}

function equalSequences(engine: ComputeEngine, a: Sequence, b: Sequence): boolean {
  // A bare list stands for a tuple.
  const bare = (one: Sequence, other: Sequence): boolean =>
    one.brackets === '' && ['()', '[]'].includes(other.brackets);
  if (a.items.length !== b.items.length) return false;
  if (a.brackets !== b.brackets && !bare(a, b) && !bare(b, a)) return false;
  if (a.brackets !== 'set') return a.items.every((item, i) => equal(engine, item, b.items[i] as string));
  const left = [...b.items];
  return a.items.every((item) => {
    const found = left.findIndex((other) => equal(engine, item, other));
    if (found >= 0) left.splice(found, 1);
    return found >= 0;
  });
}

/** Left minus right side of an equation. */
const difference = ([left, right]: readonly string[]): string => `(${left})-(${right})`;

/** A number with its base, of which words are left out. */
const BASED = /^(\d+)_\{? *(\d*) *\}?$/;

/** Digits alike, and bases alike where both have one; null: neither is a number with its base. */
function equalInBase(a: string, b: string): boolean | null {
  const [first, second] = [a, b].map(
    (text) => BASED.exec(text) ?? (INTEGER.test(text) ? [text, text, ''] : null),
  );
  if (!first || !second || !(BASED.test(a) || BASED.test(b))) return null;
  return first[1] === second[1] && (first[2] === second[2] || first[2] === '' || second[2] === '');
}

function equal(engine: ComputeEngine, a: string, b: string): boolean {
  if (a === b) return a !== '';
  const inBase = equalInBase(a, b);
  if (inBase !== null) return inBase;
  for (const separator of ['\\cup', '\\in']) {
    const [first, second] = [splitOutside(a, separator), splitOutside(b, separator)];
    if (first.length > 1 && first.length === second.length)
      return first.every((part, i) => equal(engine, part, second[i] as string));
  }
  const [first, second] = [asSequence(a), asSequence(b)];
  if (first && second) return equalSequences(engine, first, second);
  if (first || second) return false;
  const [left, right] = [a.split('='), b.split('=')];
  if (left.length === 2 && right.length === 2) {
    const [one, other] = [difference(left), difference(right)];
    return equalValues(engine, one, other) || equalValues(engine, one, `-(${other})`);
  }
  const value = (sides: string[]): string =>
    sides.length === 2 && (sides[0] as string).trim().length <= 2 ? (sides[1] as string) : sides.join('=');
  if (left.length === 2 || right.length === 2) {
    const [one, other] = [value(left), value(right)];
    return one.includes('=') || other.includes('=') ? false : equalValues(engine, one, other);
  }
  return equalValues(engine, a, b);
}

/** Same names, same points: between -2 and 2, none special. */
const pointOf = (names: readonly string[], point: number): Record<string, number> =>
  Object.fromEntries(
    names.map((name, j) => [name, 4 * (((7 * point + 3 * j + 1) * 0.618033988749895) % 1) - 2]),
  );

interface Complex {
  re: number;
  im: number;
}

function valueAt(expression: Expression, point: Record<string, number>): Complex {
  const { re, im } = expression.subs(point).N();
  return { re, im };
}

const defined = ({ re, im }: Complex): boolean => Number.isFinite(re) && Number.isFinite(im);

const INTEGER = /^[-+]?\d+$/;
/** Below this, what is computed as an integer is one. */
const EXACT_INTEGERS = 1e12;
const isInteger = ({ re, im }: Complex): boolean =>
  im === 0 && Number.isInteger(re) && Math.abs(re) < EXACT_INTEGERS;

function close(a: Complex, b: Complex, tolerance: number, floor: number): boolean {
  if (isInteger(a) && isInteger(b)) return a.re === b.re;
  const size = Math.max(floor, Math.hypot(a.re, a.im), Math.hypot(b.re, b.im));
  return Math.hypot(a.re - b.re, a.im - b.im) <= tolerance * size;
}

function equalValues(engine: ComputeEngine, a: string, b: string): boolean {
  // Words are no products of letters.
  if (/^[a-zA-Z]{3,}$/.test(a) || /^[a-zA-Z]{3,}$/.test(b)) return a === b;
  if (INTEGER.test(a) && INTEGER.test(b)) return BigInt(a) === BigInt(b);
  const [first, second] = [engine.parse(a), engine.parse(b)];
  if (!first.isValid || !second.isValid) return false;
  const names = [...new Set([...first.unknowns, ...second.unknowns])].sort();
  if (names.length === 0) {
    const [x, y] = [valueAt(first, {}), valueAt(second, {})];
    if (!defined(x) || !defined(y)) return first.isSame(second);
    const decimal = /^-?[\d ]*\.\d+$/.test(a) || /^-?[\d ]*\.\d+$/.test(b);
    return close(x, y, decimal ? DECIMAL : EXACT, 0);
  }
  let agreed = 0;
  for (let k = 0; k < POINTS; k++) {
    const point = pointOf(names, k);
    const [x, y] = [valueAt(first, point), valueAt(second, point)];
    if (!defined(x) && !defined(y)) continue;
    if (!defined(x) || !defined(y) || !close(x, y, EXACT, 1)) return false;
    agreed++;
  }
  return agreed >= NEEDED || first.isSame(second);
}

let loaded: typeof import('@cortex-js/compute-engine') | null = null;

/**
 * Whether two LaTeX answers are equal as mathematics: numbers by value, expressions with variables by their values at
 * several points, tuples, intervals and lists item by item, sets in any order, equations up to their sign. Time and
 * memory are not bounded: `10^{10^{10}}` is a legal answer. Run it where it can be killed.
 */
export function symbolicallyEqual(answer: string, truth: string): boolean {
  // Loading takes half a second and 50 MB: only where it is needed.
  loaded ??= require('@cortex-js/compute-engine') as typeof import('@cortex-js/compute-engine');
  try {
    // An engine remembers what it inferred about symbols: a new one for each comparison.
    return equal(new loaded.ComputeEngine(), tidy(answer), tidy(truth));
  } catch {
    return false;
  }
}
