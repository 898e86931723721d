import { type ChildProcess, fork } from 'node:child_process';
import type { EventEmitter } from 'node:events';
import path from 'node:path';
import { type GroupGuard, signalGroup } from '../../base/group_guard';
import { printable } from '../../base/printable';
import { ConfigError } from '../../errors';
import { packageRoot } from '../../install/package_root';
import { isPython, PythonScorer } from './python_scorer';
import type { ScorerReply, ScorerRequest, ScorerSetup } from './scorer_protocol';

/** Starting node and loading the user's module may take so long, milliseconds. */
export const START_MS = 60_000;

export interface ForkOptions {
  /** JavaScript heap, MiB; null: Node's default. */
  memoryMb: number | null;
  /** Whether it may print. */
  output: boolean;
  /** Environment beside this process's own. */
  env: Readonly<Record<string, string>>;
}

/** A process that scores: emits `message` (ScorerMessage), `error`, `exit` and `disconnect` as a ChildProcess does. */
export interface ScorerChild extends EventEmitter {
  readonly pid?: number | undefined;
  readonly connected: boolean;
  readonly channel?: { ref(): void; unref(): void } | null | undefined;
  send(message: ScorerRequest, sent: (error: Error | null) => void): unknown;
  kill(signal: 'SIGKILL'): unknown;
  ref(): void;
  unref(): void;
}

/** Starts a process that does what `setup` says, of which it must be told. What it starts itself ends with it, whatever it dies of. */
export function startScorer(setup: ScorerSetup, options: ForkOptions, guard: GroupGuard): ScorerChild {
  const module = setup.kind === 'function' ? setup.module : null;
  const child: ScorerChild = guard.start(() =>
    module !== null && isPython(module.path) ? new PythonScorer(module, options.env) : forkScorer(options),
  );
  child.on('exit', () => {
    signalGroup(child.pid, 'SIGKILL');
    guard.drop(child.pid);
  });
  return child;
}

/** Starts dist/reward/scorer_main.js. */
function forkScorer({ memoryMb, output, env }: ForkOptions): ChildProcess {
  // A debugger's port is taken by this process; other options, such as loaders, hold for the user's module, too.
  const execArgv = process.execArgv.filter((argument) => !argument.startsWith('--inspect'));
  if (memoryMb !== null) execArgv.push(`--max-old-space-size=${memoryMb}`);
  const stream = output ? 'inherit' : 'ignore';
  return fork(path.join(packageRoot, 'dist', 'reward', 'scorer_main.js'), [], {
    execArgv,
    env: { ...process.env, ...env },
    serialization: 'advanced',
    stdio: ['ignore', stream, stream, 'ipc'],
    // A Ctrl-C goes to the whole process group of the terminal; the trainer still wants its rewards then.
    detached: true,
  });
}

/** Whether this process waits for a child. */
export function hold(child: ScorerChild, held: boolean): void {
  for (const handle of [child, child.channel]) {
    if (held) handle?.ref();
    else handle?.unref();
  }
}

/** The error of a reply. */
export const replyError = (reply: ScorerReply & { ok: false }): Error =>
  reply.configuration ? new ConfigError(reply.error) : new Error(reply.error);

export const strayError = (error: string): Error =>
  new Error(`it left something behind that failed later, and nothing waited for it: ${printable(error)}`);

export const endError = (code: number | null, signal: string | null): Error =>
  new Error(`its process ended with ${signal ?? `exit code ${code}`}`);

/** Whether sending failed because the process is ending: its end then says why. The channel may still look open. */
export const isLostChannel = (error: Error): boolean =>
  // Node 26 cancels what is still to be sent.
  ['EPIPE', 'ECONNRESET', 'ECANCELED', 'ERR_IPC_CHANNEL_CLOSED', 'ERR_STREAM_DESTROYED'].includes(
    (error as NodeJS.ErrnoException).code ?? '',
  );
