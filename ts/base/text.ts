// Small helpers for messages to people.
import { types } from 'node:util';
import { distance } from 'fastest-levenshtein';
import { printable } from './printable';

const SHOWN = 60;

/** What JSON has no number for, as the text of it: "NaN", "Infinity", "-Infinity", the digits of an integer beyond 2^53. */
const written = (_: string, item: unknown): unknown =>
  typeof item === 'bigint' || (typeof item === 'number' && !Number.isFinite(item)) ? String(item) : item;

/** JSON for readers, of what may hold integers beyond 2^53 (from int64 columns), NaN and infinities: they become strings. */
export const toJson = (value: unknown): string => JSON.stringify(value, written);

/** Whether no character of it is half of a surrogate pair. */
export const isWellFormed = (text: string): boolean => !/\p{Surrogate}/u.test(text);

/** What of an array a message may show: one of millions of entries is neither copied nor written out for it. */
const shortened = (key: string, item: unknown): unknown => {
  if (ArrayBuffer.isView(item) && !types.isDataView(item))
    return Array.from((item as Float32Array).subarray(0, SHOWN));
  return Array.isArray(item) && item.length > SHOWN ? item.slice(0, SHOWN) : written(key, item);
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
