// Small helpers for messages to people.
import { types } from 'node:util';
import { distance } from 'fastest-levenshtein';
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
  try {
    // A message may be anything, and may throw when it is looked at.
    return String(types.isNativeError(thrown) || thrown instanceof Error ? thrown.message : thrown);
  } catch {
    return 'something that has no text';
  }
}

/** Levenshtein distance (substitution, insertion and deletion cost 1 each), letter case aside. */
export const editDistance = (first: string, second: string): number =>
  distance(first.toLowerCase(), second.toLowerCase());

/** `1 step`, `2 steps`. */
export const counted = (n: number, noun: string): string => `${n} ${noun}${n === 1 ? '' : 's'}`;
