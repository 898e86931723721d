// The process in which a user's data set in Python is made, and its rows are written down.
import { type ChildProcess, spawn } from 'node:child_process';
import path from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { GroupGuard, signalGroup } from '../../base/group_guard';
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';
import { timerMs } from '../../base/timers';
import { ConfigError, TroupeError } from '../../errors';
import { packageRoot } from '../../install/package_root';
import type { DatasetMessage, DatasetSetup, GivenSet, WrittenSet } from './protocol';
import type { RowSpool } from './row_spool';

/** A data set class and the interpreter that runs it. */
export interface DatasetClass {
  path: string;
  name: string;
  python: string;
}

const SECTION = 'data.custom_cls';
/** The first of the descriptors that rows are written to, in the process: behind those of its messages. */
const FIRST_SPOOL = 5;
/** Python says itself when nothing comes in time; where it does not run at all, it is given so much more, milliseconds. */
const GRACE_MS = 5_000;
/** What an ended process has sent is waited for so long, milliseconds. */
const DRAIN_MS = 1000;
/** Characters of an error that people are told. */
const MAX_REASON = 2000;

/**
 * Runs the class once over all sets; `spools` get their rows. The process, and what it has started, has ended when this returns, which it does
 * at once when `signal` is aborted. What it prints goes to this process's standard error.
 * @throws the reason of `signal`; ConfigError naming the key; TroupeError INVALID_DATA of a class that fails, ends its process or takes too long
 */
export async function writeRows(
  { path: module, name, python }: DatasetClass,
  setup: Omit<DatasetSetup, 'path' | 'name' | 'sets'>,
  sets: readonly GivenSet[],
  spools: readonly RowSpool[],
  signal?: AbortSignal,
): Promise<WrittenSet[]> {
  signal?.throwIfAborted();
  const guard = new GroupGuard();
  const child = guard.start(() =>
    spawn(python, ['-u', path.join(packageRoot, 'python', 'dataset_worker.py')], {
      stdio: ['ignore', 2, 2, 'pipe', 'pipe', ...spools.map(({ descriptor }) => descriptor)],
      // A Ctrl-C goes to the whole process group of the terminal, and what it means is for this process to say.
      detached: true,
    }),
  );
  const failed = (why: string): TroupeError =>
    new TroupeError('INVALID_DATA', `[data] ${SECTION}: ${name} of ${module}: ${why}`);
  try {
    const message: DatasetSetup = {
      ...setup,
      path: module,
      name,
      sets: sets.map((set, i) => ({ ...set, descriptor: FIRST_SPOOL + i })),
    };
    const last = await unlessAborted(lastMessage(child, message, python, failed), signal);
    if (last.type === 'done') return last.sets.map((set, i) => checked(set, spools[i] as RowSpool, failed));
    const why = printable(last.error, { max: MAX_REASON });
    if (!last.configuration) throw failed(why);
    throw new ConfigError(why, why.split(':')[0] ?? SECTION);
  } finally {
    signalGroup(child.pid, 'SIGKILL');
    guard.drop(child.pid);
  }
}

function unlessAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return work;
  return new Promise((resolve, reject) => {
    const stop = (): void => reject(signal.reason);
    signal.addEventListener('abort', stop, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
  });
}

/** What its code wrote there beside them shows in the size. */
function checked(set: WrittenSet, spool: RowSpool, failed: (why: string) => TroupeError): WrittenSet {
  if (spool.bytes === set.bytes) return set;
  throw failed(
    `expected ${set.bytes} bytes of ${set.what} rows, found ${spool.bytes}: it wrote to their file`,
  );
}

/** What the process has to say in the end. */
function lastMessage(
  child: ChildProcess,
  setup: DatasetSetup,
  python: string,
  failed: (why: string) => TroupeError,
): Promise<Exclude<DatasetMessage, { type: 'at' }>> {
  const [requests, replies] = (child.stdio ?? []).slice(3) as [Writable?, Readable?];
  return new Promise((resolve, reject) => {
    let at: string | null = null;
    const late = (): void => {
      reject(
        at === null
          ? notStarted(`${python} did nothing within ${setup.timeout} s`)
          : failed(
              `nothing came within ${SECTION}.timeout, ${setup.timeout} s, while ${at}, and Python itself did not go on`,
            ),
      );
    };
    const timer = setTimeout(late, timerMs(setup.timeout * 1000 + GRACE_MS));
    const end = (settle: () => void): void => {
      clearTimeout(timer);
      settle();
    };
    child.on('error', (cause: NodeJS.ErrnoException) =>
      end(() =>
        reject(notStarted(`could not start ${python} (${reasonOf(cause)}): install it, or give another`)),
      ),
    );
    const ended = (): void => {
      const { exitCode, signalCode } = child;
      end(() =>
        reject(
          at === null
            ? notStarted(`${python} ended before it began: expected Python 3.8 or newer`)
            : failed(
                `its process ended with ${signalCode ?? `exit code ${exitCode}`} while ${at}, or soon after`,
              ),
        ),
      );
    };
    if (!requests || !replies) return;
    // That it has gone shows at the other end.
    requests.on('error', () => undefined);
    requests.write(`${JSON.stringify(setup)}\n`);
    const lines = createInterface({ input: replies });
    replies.on('error', () => undefined);
    lines.on('line', (line) => {
      let message: DatasetMessage;
      try {
        message = JSON.parse(line) as DatasetMessage;
      } catch {
        return end(() => reject(failed('it wrote to the socket of its process (file descriptor 4)')));
      }
      timer.refresh();
      if (message.type === 'at') at = message.at;
      else end(() => resolve(message as Exclude<DatasetMessage, { type: 'at' }>));
    });
    // What it has said before may still be on its way, and what it has started may hold its socket.
    child.once('exit', () => {
      if (replies.closed) return ended();
      replies.once('close', ended);
      setTimeout(ended, DRAIN_MS);
    });
  });
}

/** Of the interpreter. */
const notStarted = (why: string): ConfigError =>
  new ConfigError(`${SECTION}.python: ${why}`, `${SECTION}.python`);
