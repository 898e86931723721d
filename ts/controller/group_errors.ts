import { TroupeError } from '../errors';
import { fromWireError, type WireError } from '../worker/protocol';

export function groupClosed(): TroupeError {
  return new TroupeError('CLOSED', 'the worker group has been closed');
}

/** Which worker it is. */
export interface WorkerIdentity {
  rank: number;
  /** Of the rank, where the run has several. */
  pool: string | null;
  /** Where the run has several. */
  host: string | null;
  /** The file with all that it has written; null: there is none. */
  logFile?: string | null;
}

/** A sentence for the end of an error; empty where there is no log. */
export const logNote = ({ logFile }: WorkerIdentity): string => (logFile ? `\nIts log: ${logFile}` : '');

/** "worker rank 0", of which pool and on which host where there are several. */
export function workerName({ rank, pool, host }: WorkerIdentity): string {
  return `worker rank ${rank}${pool === null ? '' : ` of pool ${pool}`}${host === null ? '' : ` on ${host}`}`;
}

export function cannotStart(wire: WireError, worker: WorkerIdentity): TroupeError {
  const message = `${workerName(worker)} could not start: ${wire.message}${logNote(worker)}`;
  return fromWireError({ ...wire, message }, worker.rank);
}

/** An error of one rank that ends the group, with the place where it came from. */
export function rankFailed(
  cause: unknown,
  worker: WorkerIdentity,
  phase: string | null,
  what: string,
): TroupeError {
  const doing = phase === null ? what : `phase ${phase} (${what})`;
  const code = cause instanceof TroupeError ? cause.code : 'INTERNAL';
  const error = new TroupeError(
    code,
    `${workerName(worker)} failed in ${doing}: ${cause instanceof Error ? cause.message : String(cause)}${logNote(worker)}`,
  );
  if (cause instanceof Error && cause.stack !== undefined) error.stack = `${error.stack}\n${cause.stack}`;
  return error;
}

/** The rank has lost a peer in a collective. */
export const lostPeers = (error: unknown): boolean => error instanceof TroupeError && error.code === 'COMM';

/** Where a rank refuses its arguments, the others hear of it and are ABORTED. */
export const refusedByPeer = (error: unknown): boolean =>
  error instanceof TroupeError && error.code === 'ABORTED';

/** Of the errors of one call by rank the one that the others follow from. */
export function firstCause(errors: ReadonlyMap<number, unknown>): [number, unknown] {
  return (
    [...errors].find(([, e]) => !lostPeers(e) && !refusedByPeer(e)) ??
    [...errors].find(([, e]) => !lostPeers(e)) ??
    ([...errors][0] as [number, unknown])
  );
}
