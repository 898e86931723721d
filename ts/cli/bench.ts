import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { TroupeError } from '../errors';
import { packageRoot } from '../install/package_root';

/** `troupe bench`: bench/run.mjs of a clone, with its own arguments. Returns its exit code. */
export function bench(args: readonly string[]): Promise<number> {
  const program = join(packageRoot, 'bench', 'run.mjs');
  if (!existsSync(program)) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `the benchmarks are not part of the published package (${program} is missing): run \`npm run bench\` in a clone`,
    );
  }
  const child = spawn(process.execPath, [program, ...args], { stdio: 'inherit' });
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) => resolve(code ?? (signal === 'SIGINT' ? 130 : 1)));
  });
}
