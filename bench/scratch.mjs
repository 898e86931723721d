import { mkdtempSync, rmSync } from 'node:fs';
import { constants, tmpdir } from 'node:os';
import { join } from 'node:path';

/** A new temporary directory, which goes with this process: also when something fails, or somebody stops it. */
export function scratchDirectory(name) {
  const directory = mkdtempSync(join(tmpdir(), `troupe-${name}-`));
  process.once('exit', () => rmSync(directory, { recursive: true, force: true, maxRetries: 3 }));
  for (const signal of ['SIGINT', 'SIGTERM'])
    process.once(signal, () => process.exit(128 + constants.signals[signal]));
  return directory;
}
