// Files that must be plain ones: a FIFO or a device would be read, or waited for, without end.
import { readFileSync, type Stats, statSync } from 'node:fs';
import { TroupeError } from '../errors';
import { asTroupeError } from './atomic_dir';
import { decodeUtf8 } from './utf8';

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
    `${path}: expected a file, but it is ${kindOf(found)}: name a file, or move it away`,
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

/** The same of a text that somebody wrote, without a byte-order mark. @throws TroupeError IO also when it is no UTF-8 */
export function readTextFile(path: string): string {
  isRegularFile(path);
  let bytes: Buffer;
  try {
    bytes = readFileSync(path);
  } catch (error) {
    throw asTroupeError(error, `read ${path}`);
  }
  return decodeUtf8(bytes, (line) => {
    throw new TroupeError('IO', `${path}:${line}: not valid UTF-8: write the file again as UTF-8`);
  });
}

function kindOf(found: Stats): string {
  if (found.isDirectory()) return 'a directory';
  return found.isFIFO() ? 'a FIFO' : 'a device or socket';
}
