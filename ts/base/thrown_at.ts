import { join, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The folder of our package.json. */
export const PACKAGE = resolve(__dirname, '..', '..');
/** Our own modules, those of packages, and Node's own: none of them is what the user can change. Sources: under source maps. */
const OTHERS = [join(PACKAGE, 'dist') + sep, join(PACKAGE, 'ts') + sep, `${sep}node_modules${sep}`];
/** Whether a module is one of the user's own. */
export const isUsers = (file: string): boolean => !OTHERS.some((part) => file.includes(part));

/** A line of a stack: the file, by its path or address, and the line in it. */
const FRAME = /^ +at (?:.* \(|async )?((?:file:\/\/)?\/.*):(\d+):\d+\)?$/;
/** What Node writes before the stack where a file could not be parsed. */
const UNPARSED = /^((?:file:\/\/)?\/.*):(\d+)$/;

export interface Place {
  file: string;
  /** From 1. */
  line: number;
}

function place(found: RegExpExecArray | null): Place | null {
  const [, file, line] = found ?? [];
  if (file === undefined) return null;
  return { file: file.startsWith('file:') ? fileURLToPath(file) : file, line: Number(line) };
}

/** The file and line in a report that starts with what could not be parsed, as Node prints it; null: it does not. */
export const unparsedAt = (report: string): Place | null =>
  place(UNPARSED.exec(report.split('\n', 1)[0] ?? ''));

function stackOf(error: unknown): string {
  try {
    const stack = typeof error === 'object' && error !== null && 'stack' in error ? error.stack : null;
    return typeof stack === 'string' ? stack : '';
  } catch {
    return '';
  }
}

/**
 * The innermost call in a file of the user's, or the line there that could not be parsed; null: there is none. `caller`: the file of
 * ours that called the user's code, where it was perhaps itself called by other code of theirs, which is not to blame.
 */
export function placeOf(error: unknown, caller: string | null = null): Place | null {
  const stack = stackOf(error);
  const unparsed = unparsedAt(stack);
  if (unparsed !== null) return unparsed;
  for (const line of stack.split('\n')) {
    const found = place(FRAME.exec(line));
    if (found === null) continue;
    if (found.file === caller) return null;
    if (isUsers(found.file)) return found;
  }
  return null;
}

/** `, at FILE:LINE`; an empty text where no place is known. */
export const atPlace = (found: Place | null): string =>
  found === null ? '' : `, at ${found.file}:${found.line}`;

/** `, at FILE:LINE` of {@link placeOf}. */
export const thrownAt = (error: unknown, caller: string | null = null): string =>
  atPlace(placeOf(error, caller));
