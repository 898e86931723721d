import { WorkerDiedError } from '../errors';
import { logNote, type WorkerIdentity, workerName } from './group_errors';
import type { WorkerExit } from './launcher';

export interface Death extends WorkerIdentity {
  /** Where the trainer was: 'update_actor'; or what the worker was asked last. */
  phase: string;
  /** The request being worked on, if any: "updatePolicy of 'actor'". */
  request: string | null;
  /** How the process ended; null when it still exists but is lost. */
  exit: WorkerExit | null;
  /** Why it counts as dead when `exit` is null: 'sent no heartbeat for 10 s'. */
  reason: string | null;
  stderrTail: string;
}

/** "worker rank 0 died in phase update_actor (updatePolicy of 'actor'): killed by SIGKILL (...)", and its last words. */
export function workerDied(death: Death): WorkerDiedError {
  const doing = death.request === null || death.request === death.phase ? '' : ` (${death.request})`;
  const how = death.exit === null ? (death.reason ?? 'lost') : describeExit(death.exit);
  const said =
    death.stderrTail.trim() === ''
      ? 'It wrote nothing to stderr.'
      : `Its last lines on stderr:\n${indent(death.stderrTail)}`;
  return new WorkerDiedError(
    `${workerName(death)} died in phase ${death.phase}${doing}: ${how}. ${said}${logNote(death)}`,
    {
      rank: death.rank,
      pool: death.pool,
      host: death.host,
      logFile: death.logFile ?? null,
      phase: death.phase,
      exitCode: death.exit?.exitCode ?? null,
      signal: death.exit?.signal ?? null,
    },
  );
}

/** "it exited with code 7" */
export function describeExit(exit: WorkerExit): string {
  if (exit.lost !== undefined) return exit.lost;
  switch (exit.signal) {
    case null:
      return exit.exitCode === null
        ? 'its process could not be started'
        : `it exited with code ${exit.exitCode}`;
    case 'SIGKILL':
      return 'killed by SIGKILL (by someone, or by the kernel for want of memory: see `dmesg`)';
    case 'SIGSEGV':
    case 'SIGABRT':
    case 'SIGBUS':
    case 'SIGILL':
    case 'SIGFPE':
      return `crashed in native code with ${exit.signal}`;
    default:
      return `killed by ${exit.signal}`;
  }
}

function indent(text: string): string {
  return text
    .split('\n')
    .map((line) => `  ${line}`)
    .join('\n');
}
