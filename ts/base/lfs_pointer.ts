// What a clone has in place of a large file where Git LFS has not fetched it: a few lines of text.
import { closeSync, openSync, readSync } from 'node:fs';

const POINTER = 'version https://git-lfs.github.com/spec/';

/** To be appended to what is wrong with a file: what to do where it is a pointer of Git LFS; else an empty text. */
export function pointerHint(file: string): string {
  const start = Buffer.alloc(POINTER.length);
  let fd: number | null = null;
  try {
    fd = openSync(file, 'r');
    readSync(fd, start, 0, start.length, 0);
  } catch {
    // It is told what is wrong with it already.
  } finally {
    if (fd !== null) closeSync(fd);
  }
  return start.toString('latin1') === POINTER
    ? ': it is a pointer of Git LFS, in place of the file itself: fetch that with git lfs pull'
    : '';
}
