// Small helpers for messages to people.
import { types } from 'node:util';
import { printable } from './printable';

const SHOWN = 60;

/** JSON of what may hold integers beyond 2^53 (from int64 columns): they become strings of their digits. */
export const toJson = (value: unknown): string =>
  JSON.stringify(value, (_, item: unknown) => (typeof item === 'bigint' ? String(item) : item));

function jsonOf(value: unknown): string {
  // JSON has null for NaN and infinities.
  if (typeof value === 'number') return String(value);
  try {
    return toJson(value) ?? String(value);
  } catch {
    return `${Array.isArray(value) ? 'an array' : 'an object'} that JSON cannot hold`;
  }
}

/** A value as an error message shows it: JSON, cut short. Never throws itself. */
export function show(value: unknown): string {
  const text = jsonOf(value);
  return text.length > SHOWN ? `${printable(text.slice(0, SHOWN))}...` : printable(text);
}

/** What went wrong, from whatever was thrown, also by native code or in another realm. Never throws itself. */
export function reasonOf(thrown: unknown): string {
  if (types.isNativeError(thrown) || thrown instanceof Error) return thrown.message;
  try {
    return String(thrown);
  } catch {
    return 'something that has no text';
  }
}

/** Levenshtein distance (substitution, insertion and deletion cost 1 each), letter case aside. */
export function editDistance(first: string, second: string): number {
  const [a, b] = [first.toLowerCase(), second.toLowerCase()];
  let previous = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const current = [i];
    for (let j = 1; j <= b.length; j++) {
      const substitute = (previous[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1);
      current.push(Math.min(substitute, (previous[j] as number) + 1, (current[j - 1] as number) + 1));
    }
    previous = current;
  }
  return previous[b.length] as number;
}
