// The directory on a disk that a run without namespaces has to itself. Its name says whose it is, so that what a caller that was killed
// has left is found by another one.
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync, readlinkSync, type Stats } from 'node:fs';
import { chown, lstat, mkdir, readdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';
import { SYSTEM_PATH } from './command';
import { RunUsers } from './run_users';
import { endStrays, lookAt, type RunMark } from './strays';

const NAME = /^troupe-sandbox-(?<where>[0-9a-f]{12})-(?<pid>\d+)-(?<start>\d+)-(?<value>[0-9a-f-]{36})$/;

/**
 * Makes it for the run with this mark, whose value is a UUID.
 * @returns its path
 */
export async function makeScratch({ value, uid, ownUser }: RunMark): Promise<string> {
  const start = lookAt(String(process.pid))?.start;
  const path = join(tmpdir(), `troupe-sandbox-${whereIdsHold()}-${process.pid}-${start}-${value}`);
  await mkdir(path, { mode: 0o700 });
  if (ownUser) await chown(path, uid, uid);
  return path;
}

/**
 * Also what a program made unreadable, or deeper than paths may be long.
 * @throws TroupeError SANDBOX_FAILED
 */
export async function removeScratch(path: string): Promise<void> {
  // It goes from descriptor to descriptor: no link that a program puts in its way leads it elsewhere.
  const remove = (): Promise<unknown> => command('rm', '-rf', '--', path);
  try {
    await remove().catch(async () => {
      await command('chmod', '-R', 'u+rwx', '--', path).catch(() => undefined);
      await remove();
    });
  } catch (error) {
    throw new TroupeError('SANDBOX_FAILED', `[sandbox] ${path} could not be removed: ${reasonOf(error)}`, {
      cause: error,
    });
  }
}

/**
 * Removes the directories that killed callers of this user have left, and ends the programs in them. Those of another machine, container
 * or start of this machine stay: nobody here can tell whether their processes are gone. So does what cannot be removed.
 * @param variable that the environments of programs are marked with
 */
export async function removeAbandoned(variable: string): Promise<void> {
  const here = whereIdsHold();
  for (const name of await readdir(tmpdir()).catch(() => [])) {
    const { where, pid, start, value } = NAME.exec(name)?.groups ?? {};
    if (where !== here || pid === undefined || value === undefined) continue;
    const since = Number(start);
    const path = join(tmpdir(), name);
    if (lookAt(pid)?.start === since) continue;
    const found = await lstat(path).catch(() => null);
    if (!found?.isDirectory() || !isOurs(found)) continue;
    // Its user may be another run's by now.
    await endStrays({ variable, value, uid: found.uid, ownUser: false, since });
    await removeScratch(path).catch(() => undefined);
  }
}

/** Of this user, or of one that this user's runs have. */
function isOurs({ uid }: Stats): boolean {
  const user = process.geteuid?.();
  return uid === user || (user === 0 && RunUsers.has(uid));
}

/** A digest of what ids of processes are unique in: one start of a machine, and of its namespaces of processes this one. null: unknown. */
function whereIdsHold(): string | null {
  try {
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'latin1');
    return createHash('sha256')
      .update(boot + readlinkSync('/proc/self/ns/pid'))
      .digest('hex')
      .slice(0, 12);
  } catch {
    return null;
  }
}

const command = (program: string, ...args: string[]): Promise<unknown> =>
  promisify(execFile)(program, args, { env: { PATH: SYSTEM_PATH } });
