// Files below the runs directory, and nothing else: no way leads out of it, also not through symbolic links.
import {
  closeSync,
  constants,
  type Dirent,
  fstatSync,
  lstatSync,
  openSync,
  readdirSync,
  readlinkSync,
  readSync,
  realpathSync,
} from 'node:fs';
import { join, sep } from 'node:path';

/** A file that is open for reading; the identity of what it is. */
export interface OpenFile {
  fd: number;
  size: number;
  modified: number;
  identity: string;
}

export class Inside {
  /** Absolute, without links. */
  readonly root: string;

  /** Throws what the system says when there is no such directory, and where it is something else. */
  constructor(root: string) {
    this.root = realpathSync(root);
    if (!lstatSync(this.root).isDirectory()) throw new Error(`${root} is not a directory`);
  }

  /**
   * Runs `work` with a plain file at `path` (relative, from names that directory listings gave); null when there is none, when it is a
   * link, a pipe or a device, or when it lies outside.
   */
  with<T>(path: string, work: (file: OpenFile) => T): T | null {
    let fd: number;
    try {
      fd = openSync(join(this.root, path), constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    } catch {
      return null;
    }
    try {
      const stat = fstatSync(fd);
      // Where it has been opened, whatever the directories on the way were when they were listed.
      if (!stat.isFile() || !readlinkSync(`/proc/self/fd/${fd}`).startsWith(this.root + sep)) return null;
      return work({
        fd,
        size: stat.size,
        modified: stat.mtimeMs / 1000,
        identity: `${stat.dev}:${stat.ino}`,
      });
    } finally {
      closeSync(fd);
    }
  }

  /** Changes with what is there, without a look into it: "" where there is nothing, or a link, or what may not be looked at. */
  stamp(path: string): string {
    try {
      const stat = lstatSync(join(this.root, path), { throwIfNoEntry: false });
      if (stat === undefined || stat.isSymbolicLink()) return '';
      return `${stat.dev}:${stat.ino}:${stat.size}:${stat.mtimeMs}`;
    } catch {
      return '';
    }
  }

  /** Entries of a directory, links left out; none where it cannot be read. */
  list(path: string): Dirent[] {
    const absolute = join(this.root, path);
    try {
      const real = realpathSync(absolute);
      if (real !== absolute.replace(/\/$/, '') || !`${real}/`.startsWith(`${this.root}/`)) return [];
      return readdirSync(absolute, { withFileTypes: true }).filter((entry) => !entry.isSymbolicLink());
    } catch {
      return [];
    }
  }

  /** The whole text of a small file; null when there is none, or it has more than `most` bytes. */
  text(path: string, most = 16 << 20): string | null {
    return this.with(path, ({ fd, size }) => (size > most ? null : readAt(fd, 0, size).toString('utf8')));
  }
}

/** Up to `length` bytes from `position`: fewer at the end of the file. */
export function readAt(fd: number, position: number, length: number): Buffer {
  const buffer = Buffer.allocUnsafe(length);
  let at = 0;
  while (at < length) {
    const read = readSync(fd, buffer, at, length - at, position + at);
    if (read === 0) break;
    at += read;
  }
  return buffer.subarray(0, at);
}
