import { TroupeError } from '../errors';
import { fromWireError, type WireError } from '../worker/protocol';

export function groupClosed(): TroupeError {
  return new TroupeError('CLOSED', 'the worker group has been closed');
}

/** "worker rank 0", and of which pool where there are several. */
export function workerName(rank: number, pool: string | null): string {
  return `worker rank ${rank}${pool === null ? '' : ` of pool ${pool}`}`;
}

export function cannotStart(wire: WireError, rank: number, pool: string | null): TroupeError {
  const message = `${workerName(rank, pool)} could not start: ${wire.message}`;
  return fromWireError({ ...wire, message }, rank);
}

/** An error of one rank that ends the group, with the place where it came from. */
export function rankFailed(
  cause: unknown,
  { rank, pool }: { rank: number; pool: string | null },
  phase: string | null,
  what: string,
): TroupeError {
  const doing = phase === null ? what : `phase ${phase} (${what})`;
  const code = cause instanceof TroupeError ? cause.code : 'INTERNAL';
  const error = new TroupeError(
    code,
    `${workerName(rank, pool)} failed in ${doing}: ${cause instanceof Error ? cause.message : String(cause)}`,
  );
  if (cause instanceof Error && cause.stack !== undefined) error.stack = `${error.stack}\n${cause.stack}`;
  return error;
}
