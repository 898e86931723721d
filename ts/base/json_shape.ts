// What JSON.parse lets pass in silence, or what code that walks the value cannot bear: keys that appear twice, and nesting without end.

import { printable } from './printable';

/** Deeper than any data, shallower than any stack. */
const MOST_LEVELS = 200;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COLON = 0x3a;
const OPEN_OBJECT = 0x7b;
const CLOSE_OBJECT = 0x7d;
const OPEN_ARRAY = 0x5b;
const CLOSE_ARRAY = 0x5d;
const isSpace = (code: number): boolean => code === 0x20 || (code >= 0x09 && code <= 0x0d);

export interface ShapeProblem {
  kind: 'repeated' | 'deep';
  /** The key that appears twice; '' for nesting. */
  key: string;
  /** Where in the text. */
  at: number;
}

/** The first problem of a valid JSON text, at any level; null: none. One pass over the text. */
export function shapeProblem(json: string): ShapeProblem | null {
  /** Keys of the objects that are open; null for an array. */
  const open: (Set<string> | null)[] = [];
  for (let i = 0; i < json.length; i++) {
    const code = json.charCodeAt(i);
    if (code === QUOTE) {
      const end = stringEnd(json, i);
      const keys = open.at(-1);
      if (keys && isKey(json, end)) {
        const key = keyText(json.slice(i, end));
        if (keys.has(key)) return { kind: 'repeated', key, at: i };
        keys.add(key);
      }
      i = end - 1;
    } else if (code === OPEN_OBJECT || code === OPEN_ARRAY) {
      if (open.length === MOST_LEVELS) return { kind: 'deep', key: '', at: i };
      open.push(code === OPEN_OBJECT ? new Set() : null);
    } else if (code === CLOSE_OBJECT || code === CLOSE_ARRAY) open.pop();
  }
  return null;
}

/** What makes a text too much to parse, or its value to walk, told before either; null: nothing. It need not be JSON. */
export function sizeProblem(json: string, mostKeys: number): 'deep' | 'keys' | null {
  let levels = 0;
  let keys = 0;
  for (let i = 0; i < json.length; i++) {
    const code = json.charCodeAt(i);
    if (code === QUOTE) i = stringEnd(json, i) - 1;
    else if (code === COLON && ++keys > mostKeys) return 'keys';
    else if (code === OPEN_OBJECT || code === OPEN_ARRAY) {
      if (++levels > MOST_LEVELS) return 'deep';
    } else if (code === CLOSE_OBJECT || code === CLOSE_ARRAY) levels--;
  }
  return null;
}

/** What a text of JSON says. @throws SyntaxError where it is none, or is nested more than MOST_LEVELS deep */
export function parseShallow(json: string): unknown {
  if (sizeProblem(json, Number.POSITIVE_INFINITY) === 'deep')
    throw new SyntaxError(`nested more than ${MOST_LEVELS} levels deep`);
  return JSON.parse(json);
}

/** Whether a value of JSON holds at most so many others, at all its levels. */
export function holdsAtMost(value: unknown, most: number): boolean {
  const open: unknown[] = [value];
  let found = 0;
  while (open.length > 0) {
    const next = open.pop();
    if (typeof next !== 'object' || next === null) continue;
    const inner: unknown[] = Array.isArray(next) ? next : Object.values(next);
    found += inner.length;
    if (found > most) return false;
    for (const one of inner) open.push(one);
  }
  return true;
}

/** The problem in words, with the line of the text. */
export function describeShape(json: string, { kind, key, at }: ShapeProblem): { line: number; what: string } {
  const line = json.slice(0, at).split('\n').length;
  if (kind === 'deep') return { line, what: `nested more than ${MOST_LEVELS} levels deep` };
  return { line, what: `the key '${printable(key, { max: 100 })}' appears twice in one object` };
}

const keyText = (quoted: string): string =>
  quoted.includes('\\') ? (JSON.parse(quoted) as string) : quoted.slice(1, -1);

/** Index after the closing quote of the string that opens at `start`. */
function stringEnd(json: string, start: number): number {
  let at = json.indexOf('"', start + 1);
  while (at >= 0 && escaped(json, at)) at = json.indexOf('"', at + 1);
  return at < 0 ? json.length : at + 1;
}

/** Behind an odd number of backslashes. */
function escaped(json: string, at: number): boolean {
  let from = at;
  while (json.charCodeAt(from - 1) === BACKSLASH) from--;
  return (at - from) % 2 === 1;
}

function isKey(json: string, end: number): boolean {
  let i = end;
  while (i < json.length && isSpace(json.charCodeAt(i))) i++;
  return json.charCodeAt(i) === COLON;
}
