import { lstatSync, mkdirSync, readlinkSync, statSync } from 'node:fs';
import path from 'node:path';

/**
 * `mkdir -p`. Node's own recursive mkdir never returns where a parent refuses children with ENOENT (below /proc, some network
 * file systems).
 * @throws Error of the file system, or saying what is there in place of a directory
 */
export function makeDirectories(directory: string): void {
  if (isDirectory(directory)) return;
  const parent = path.dirname(directory);
  if (parent !== directory) makeDirectories(parent);
  try {
    mkdirSync(directory);
  } catch (e) {
    if ((e as NodeJS.ErrnoException).code !== 'EEXIST') throw e;
    // Another process may have been faster.
    if (!isDirectory(directory)) throw new Error(instead(directory), { cause: e });
  }
}

function isDirectory(at: string): boolean {
  try {
    return statSync(at, { throwIfNoEntry: false })?.isDirectory() ?? false;
  } catch (e) {
    // Which of its parents is none shows when that is made.
    if ((e as NodeJS.ErrnoException).code === 'ENOTDIR') return false;
    throw e;
  }
}

function instead(at: string): string {
  const found = lstatSync(at, { throwIfNoEntry: false });
  if (found?.isSymbolicLink() !== true)
    return `expected a directory, but ${at} is ${found?.isFile() ? 'a file' : 'something else'}: move it away, or choose another directory`;
  const target = path.resolve(path.dirname(at), readlinkSync(at));
  return `${at} is a symbolic link to ${target}, which is no directory: make that directory, or remove the link`;
}
