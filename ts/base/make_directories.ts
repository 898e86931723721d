import { mkdirSync, statSync } from 'node:fs';
import path from 'node:path';

/**
 * `mkdir -p`. Node's own recursive mkdir never returns where a parent refuses children with ENOENT (below /proc, some network
 * file systems).
 */
export function makeDirectories(directory: string): void {
  if (isDirectory(directory)) return;
  const parent = path.dirname(directory);
  if (parent !== directory) makeDirectories(parent);
  try {
    mkdirSync(directory);
  } catch (e) {
    // Another process may have been faster.
    if ((e as NodeJS.ErrnoException).code !== 'EEXIST' || !isDirectory(directory)) throw e;
  }
}

const isDirectory = (at: string): boolean => statSync(at, { throwIfNoEntry: false })?.isDirectory() ?? false;
