import { TroupeError } from '../errors';
import { fromWireError, type WireError } from '../worker/protocol';

export function groupClosed(): TroupeError {
  return new TroupeError('CLOSED', 'the worker group has been closed');
}

export function cannotStart(wire: WireError, rank: number): TroupeError {
  return fromWireError({ ...wire, message: `worker rank ${rank} could not start: ${wire.message}` }, rank);
}

/** An error of one rank that ends the group, with the place where it came from. */
export function rankFailed(cause: unknown, rank: number, phase: string | null, what: string): TroupeError {
  const doing = phase === null ? what : `phase ${phase} (${what})`;
  const code = cause instanceof TroupeError ? cause.code : 'INTERNAL';
  const error = new TroupeError(
    code,
    `worker rank ${rank} failed in ${doing}: ${cause instanceof Error ? cause.message : String(cause)}`,
  );
  if (cause instanceof Error && cause.stack !== undefined) error.stack = `${error.stack}\n${cause.stack}`;
  return error;
}
