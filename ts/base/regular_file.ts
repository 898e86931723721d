// Files that must be plain ones: a FIFO or a device would be read, or waited for, without end.
import { readFileSync, type Stats, statSync } from 'node:fs';
import { TroupeError } from '../errors';
import { asTroupeError } from './atomic_dir';

/**
 * Whether there is a file at `path`, behind links too.
 * @throws TroupeError IO when something else is there, or it cannot be looked at
 */
export function isRegularFile(path: string): boolean {
  let found: Stats | undefined;
  try {
    found = statSync(path, { throwIfNoEntry: false });
  } catch (error) {
    throw asTroupeError(error, `read ${path}`);
  }
  if (found === undefined || found.isFile()) return found !== undefined;
  throw new TroupeError(
    'IO',
    `${path}: expected a file, but it is ${kindOf(found)}: remove it, or choose another directory`,
  );
}

/** The text of a file. @throws TroupeError IO as {@link isRegularFile}, or when there is none */
export function readRegularFile(path: string): string {
  isRegularFile(path);
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw asTroupeError(error, `read ${path}`);
  }
}

function kindOf(found: Stats): string {
  if (found.isDirectory()) return 'a directory';
  return found.isFIFO() ? 'a FIFO' : 'a device or socket';
}
