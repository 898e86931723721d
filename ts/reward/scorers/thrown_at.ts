import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { packageRoot } from '../../install/package_root';

const OURS = path.join(packageRoot, 'dist') + path.sep;
/** A line of a stack: the file, by its path or address, and the line in it. */
const FRAME = /^ +at (?:.* \()?((?:file:\/\/)?\/.*):(\d+):\d+\)?$/;

/** `, at FILE:LINE` of the innermost call in a file of the user's; an empty text where there is none. */
export function thrownAt(error: unknown): string {
  const stack = typeof error === 'object' && error !== null && 'stack' in error ? error.stack : null;
  for (const line of typeof stack === 'string' ? stack.split('\n') : []) {
    const [, place, number] = FRAME.exec(line) ?? [];
    if (place === undefined) continue;
    const file = place.startsWith('file:') ? fileURLToPath(place) : place;
    if (!file.startsWith(OURS)) return `, at ${file}:${number}`;
  }
  return '';
}
