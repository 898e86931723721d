// Small helpers for messages to people.
import { types } from 'node:util';
import { distance } from 'fastest-levenshtein';
import { printable } from './printable';

const SHOWN = 60;

/** JSON of what may hold integers beyond 2^53 (from int64 columns): they become strings of their digits. */
export const toJson = (value: unknown): string =>
  JSON.stringify(value, (_, item: unknown) => (typeof item === 'bigint' ? String(item) : item));

/** What of an array a message may show: one of millions of entries is neither copied nor written out for it. */
const shortened = (_: string, item: unknown): unknown => {
  if (typeof item === 'bigint') return String(item);
  if (ArrayBuffer.isView(item) && !types.isDataView(item))
    return Array.from((item as Float32Array).subarray(0, SHOWN));
  return Array.isArray(item) && item.length > SHOWN ? item.slice(0, SHOWN) : item;
};

function textOf(value: unknown): string {
  try {
    // JSON has null for NaN and infinities, and no bigint.
    if (typeof value === 'number') return String(value);
    if (typeof value === 'bigint') return `${value}n`;
    if (typeof value === 'string') return JSON.stringify(value.slice(0, SHOWN + 1));
    return JSON.stringify(value, shortened) ?? String(value);
  } catch {
    return `${isArray(value) ? 'an array' : 'an object'} that JSON cannot hold`;
  }
}

/** Array.isArray throws of a proxy that was revoked. */
function isArray(value: unknown): boolean {
  try {
    return Array.isArray(value);
  } catch {
    return false;
  }
}

/** A value as an error message shows it: JSON, cut short. Never throws itself. */
export function show(value: unknown): string {
  const text = textOf(value);
  return text.length > SHOWN ? `${printable(text.slice(0, SHOWN))}...` : printable(text);
}

/** What went wrong, from whatever was thrown, also by native code or in another realm. Never throws itself. */
export function reasonOf(thrown: unknown): string {
  try {
    // A message may be anything, and may throw when it is looked at.
    const text = String(types.isNativeError(thrown) || thrown instanceof Error ? thrown.message : thrown);
    return text.startsWith('[object ') ? show(thrown) : text;
  } catch {
    return 'something that has no text';
  }
}

/** Levenshtein distance (substitution, insertion and deletion cost 1 each), letter case aside. */
export const editDistance = (first: string, second: string): number =>
  distance(first.toLowerCase(), second.toLowerCase());

/** `1 step`, `2 steps`. */
export const counted = (n: number, noun: string): string => `${n} ${noun}${n === 1 ? '' : 's'}`;
