// faults.jsonl of a run directory: what failed, when, and how long it took until the run trained again.
import { appendFileSync } from 'node:fs';
import { join } from 'node:path';
import { reasonOf } from '../base/text';
import { TroupeError, WorkerDiedError } from '../errors';

export interface Fault {
  /** Which start of the run it ended, from 0. */
  start: number;
  /** Steps that were done. */
  step: number;
  code: string;
  rank: number | null;
  host: string | null;
  phase: string | null;
  /** Of all that the worker has written. */
  log: string | null;
  message: string;
}

/** Beginning of its message: what follows are lines of the process that died. */
const MOST_CHARACTERS = 500;

export function faultOf(error: unknown, start: number, step: number): Fault {
  const died = error instanceof WorkerDiedError ? error : null;
  return {
    start,
    step,
    code: error instanceof TroupeError ? error.code : 'INTERNAL',
    rank: died?.rank ?? null,
    host: died?.host ?? null,
    phase: died?.phase ?? null,
    log: died?.logFile ?? null,
    message: reasonOf(error).slice(0, MOST_CHARACTERS),
  };
}

/** A line of what happened and when; never the reason that a run ends. */
export function writeFault(runDirectory: string, entry: Record<string, unknown>): void {
  try {
    const time = new Date().toISOString();
    appendFileSync(join(runDirectory, 'faults.jsonl'), `${JSON.stringify({ time, ...entry })}\n`);
  } catch {
    // What cannot be written now has been said.
  }
}
