import { spawnSync } from 'node:child_process';

/**
 * What starts a program so that the kernel kills it when this process has gone, whatever has become of it meanwhile: a program that is
 * stopped, or busy, cannot look for its parent. `env` is what the program gets, with the PATH on which this is looked for. What the
 * program starts itself is not killed. Nothing where util-linux is missing.
 */
export function diesWithParent(env: NodeJS.ProcessEnv): string[] {
  const options = ['--pdeathsig', 'KILL', '--'];
  const works = spawnSync('setpriv', [...options, 'true'], { stdio: 'ignore', env }).status === 0;
  return works ? ['setpriv', ...options] : [];
}
