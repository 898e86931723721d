// How hosts that share a directory find the controller: it writes where it is, and the token, into a file that its owner alone can read.
import { readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { asTroupeError } from '../base/atomic_dir';
import { makeDirectories } from '../base/make_directories';
import { TroupeError } from '../errors';
import type { ControllerAddress } from '../host/run_agent';

const OWNER_ONLY = 0o600;
/** Its group may: a volume of Kubernetes with an fsGroup is so. */
const OTHERS = 0o007;

/** @returns what removes it, unless a controller that began later has put its own in its place */
export function writeRendezvous(file: string, address: ControllerAddress): () => void {
  const temporary = `${file}.${process.pid}`;
  const text = `${JSON.stringify(address)}\n`;
  try {
    makeDirectories(dirname(file));
    writeFileSync(temporary, text, { mode: OWNER_ONLY });
    renameSync(temporary, file);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw asTroupeError(error, `write ${file}`);
  }
  return () => {
    try {
      if (readFileSync(file, 'utf8') === text) rmSync(file);
    } catch {
      // It is gone, with its directory perhaps.
    }
  };
}

/** @throws TroupeError IO when it cannot be read, is empty, or can be read by others */
export function readToken(file: string): string {
  let token: string;
  try {
    if ((statSync(file).mode & OTHERS) !== 0) throw new Error('everybody can read it: chmod 600');
    token = readFileSync(file, 'utf8').trim();
    if (token === '') throw new Error('it is empty');
  } catch (error) {
    throw new TroupeError('IO', `trainer.launcher.token_file ${file}: ${(error as Error).message}`, {
      cause: error,
    });
  }
  return token;
}
