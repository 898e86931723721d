import { types } from 'node:util';
import { TroupeError } from '../errors';

/** A wrong command line: exit code 2. */
export class UsageError extends Error {}

/** 2 for a wrong command line or configuration, else 1. */
export function exitCodeOf(error: unknown): number {
  if (error instanceof UsageError) return 2;
  return error instanceof TroupeError && error.code === 'INVALID_CONFIG' ? 2 : 1;
}

/** One message on stderr; with `debug` also the stack and what caused it. */
export function reportError(
  error: unknown,
  debug: boolean,
  write: (line: string) => void = (line) => process.stderr.write(`${line}\n`),
): void {
  const message = types.isNativeError(error) ? error.message : String(error);
  const code = error instanceof TroupeError ? ` (${error.code})` : '';
  write(`troupe: error${code}: ${message}`);
  if (debug) {
    for (let cause: unknown = error; types.isNativeError(cause); cause = cause.cause)
      write(String(cause.stack));
  } else if (!isForeseen(error)) {
    write('This error was not foreseen: run again with --debug for the stack.');
  }
}

/** Ours, or the operating system's (ENOENT, EACCES, ...), which says what it could not do. */
function isForeseen(error: unknown): boolean {
  if (error instanceof TroupeError || error instanceof UsageError) return true;
  return types.isNativeError(error) && 'syscall' in error;
}
