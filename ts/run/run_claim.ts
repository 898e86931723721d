// Which run has a directory: one at a time. Of two, each would replace the checkpoints of the other and add its lines to the same logs.
import { createHash } from 'node:crypto';
import { realpathSync } from 'node:fs';
import { connect, createServer, type Server } from 'node:net';
import { basename, dirname, join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { TroupeError } from '../errors';

/** How long one that says nothing may take to be gone: a process that was killed gives its memory back before its sockets. */
const GOING_MS = 5_000;
const PAUSE_MS = 100;

/** A claim on a directory, on this machine; it ends with {@link release}, or with the process, whatever ends that. */
export class RunClaim {
  readonly #server: Server | null;

  private constructor(server: Server | null) {
    this.#server = server;
  }

  /** `goingMs`: for how long one that does not answer is waited for. @throws TroupeError IN_USE naming the process that has it */
  static async take(directory: string, goingMs = GOING_MS): Promise<RunClaim> {
    // A name of the kernel's abstract namespace: nothing on a disk that a killed process could leave, and no id of a process that
    // another one may have by now.
    const name = `\0troupe-run-${createHash('sha256').update(realPath(directory)).digest('hex')}`;
    for (const until = performance.now() + goingMs; ; await sleep(PAUSE_MS)) {
      const server = await listen(name);
      if (server !== 'in use') return new RunClaim(server);
      const left = until - performance.now();
      const owner = await ask(name, Math.max(left, PAUSE_MS));
      if (owner === null && left > 0) continue;
      throw inUse(resolve(directory), owner ?? 'a process that does not answer');
    }
  }

  /** May be repeated. */
  release(): void {
    this.#server?.close();
  }
}

/** What to tell a run whose directory is another's: `owner` has it. */
export function inUse(directory: string, owner: string): TroupeError {
  return new TroupeError(
    'IN_USE',
    `the run directory ${directory} is in use by another run (${owner}): end that one, or choose another trainer.default_local_dir ` +
      '(to look at what it has saved, with trainer.val_only=true: another trainer.default_local_dir, trainer.resume_mode=resume_path and ' +
      'trainer.resume_from_path)',
  );
}

/** The path without links, also of a directory that is yet to be made. */
function realPath(directory: string): string {
  const path = resolve(directory);
  try {
    return realpathSync(path);
  } catch {
    const parent = dirname(path);
    return parent === path ? path : join(realPath(parent), basename(path));
  }
}

/** null: there are no such names here, and with that no claims. */
function listen(name: string): Promise<Server | 'in use' | null> {
  return new Promise((done) => {
    const server = createServer((socket) => {
      socket.on('error', () => {}).end(`process ${process.pid}`);
    });
    server.once('error', (error: NodeJS.ErrnoException) => {
      done(error.code === 'EADDRINUSE' ? 'in use' : null);
    });
    server.listen(name, () => done(server.unref()));
  });
}

/** Who listens under a name; null: nobody, or one that says nothing within `ms`. */
function ask(name: string, ms: number): Promise<string | null> {
  return new Promise((done) => {
    let answer = '';
    const socket = connect(name).setEncoding('utf8').setTimeout(ms);
    socket.on('data', (text: string) => {
      answer += text;
    });
    socket.on('timeout', () => socket.destroy());
    socket.on('error', () => {});
    socket.on('close', () => done(answer === '' ? null : answer));
  });
}
