// One file, replaced in one step.
import { closeSync, fsyncSync, openSync, renameSync, rmSync, writeSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { asTroupeError, syncPath, TEMPORARY } from './atomic_dir';

/**
 * Replaces a file in one step: a reader sees the old text or the new, also after a crash.
 * @throws TroupeError NO_SPACE, IO naming the file, which is as it was
 */
export function writeFileAtomic(path: string, data: string | Uint8Array): void {
  const temporary = temporaryOf(path);
  try {
    const fd = openSync(temporary, 'w');
    try {
      const bytes = typeof data === 'string' ? Buffer.from(data) : data;
      for (let at = 0; at < bytes.length; ) at += writeSync(fd, bytes, at);
      fsyncSync(fd);
    } finally {
      closeSync(fd);
    }
    renameSync(temporary, path);
    syncPath(dirname(path));
  } catch (error) {
    discard(temporary);
    throw asTroupeError(error, `write ${path}`);
  }
}

/** Proves that {@link writeFileAtomic} may make the file, by an empty one beside it. @throws what the file system says */
export function checkFileAtomic(path: string): void {
  const temporary = temporaryOf(path);
  closeSync(openSync(temporary, 'w'));
  rmSync(temporary);
}

const temporaryOf = (path: string): string => join(dirname(path), `${TEMPORARY}${basename(path)}`);

/** Removes what is left of a file that could not be written: what went wrong first is what the caller must see. */
export function discard(path: string): void {
  try {
    rmSync(path, { force: true });
  } catch {
    // Where its directory is gone, is none, or cannot be written, so is the file.
  }
}
