// Says where this process is when it is for long in one call that does not return: all else in it waits then, and nobody sees why.
import { url } from 'node:inspector';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { packageRoot } from '../install/package_root';

/** What the thread (loop_watch_main.ts) is given. */
export interface LoopWatchData {
  /** Counts the turns of the loop, by which it is seen to live. */
  turns: Int32Array;
  tickMs: number;
  /** After so long in code of the user's it is told. */
  userMs: number;
  /** And after so long wherever it is: nothing of ours takes it. */
  anyMs: number;
}

/**
 * Starts a thread that looks whether the loop of this one turns. It costs a timer and 10 MB, does not keep the process alive, and ends with
 * it. Nothing where a debugger is at work, which may hold the process up for as long as its user likes.
 */
export function watchLoop({ tickMs = 1_000, userMs = 20_000, anyMs = 300_000 } = {}): void {
  if (url() !== undefined) return;
  const turns = new Int32Array(new SharedArrayBuffer(4));
  const data: LoopWatchData = { turns, tickMs, userMs, anyMs };
  const thread = new Worker(join(packageRoot, 'dist', 'cli', 'loop_watch_main.js'), {
    workerData: data,
    execArgv: [],
    name: 'loop watch',
  });
  // A machine that has no room for it has a program without it.
  thread.on('error', () => undefined);
  thread.unref();
  setInterval(() => Atomics.add(turns, 0, 1), tickMs).unref();
}
