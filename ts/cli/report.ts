import { types } from 'node:util';
import { printable } from '../base/printable';
import { thrownAt } from '../base/thrown_at';
import { TroupeError } from '../errors';

/** A wrong command line: exit code 2. */
export class UsageError extends Error {}

/** 2 for a wrong command line or configuration; 3 for a run that has been started again as often as makes sense; else 1. */
export function exitCodeOf(error: unknown): number {
  if (error instanceof UsageError) return 2;
  if (!(error instanceof TroupeError)) return 1;
  return error.code === 'INVALID_CONFIG' ? 2 : error.code === 'GAVE_UP' ? 3 : 1;
}

/** One message on stderr; with `debug` also the stack and what caused it, else a `hint`. */
export function reportError(
  error: unknown,
  debug: boolean,
  write: (line: string) => void = (line) => process.stderr.write(`${line}\n`),
  hint: string | null = isForeseen(error) ? null : UNFORESEEN,
): void {
  // Parts of it may come from a file. A list of mistakes has lines of its own.
  const message = printable(types.isNativeError(error) ? error.message : String(error), {
    max: 16_000,
    lines: true,
  });
  const code = error instanceof TroupeError ? ` (${error.code})` : '';
  write(`troupe: error${code}: ${message}`);
  if (debug) {
    for (let cause: unknown = error; types.isNativeError(cause); cause = cause.cause)
      write(String(cause.stack));
  } else if (hint !== null) write(hint);
}

const UNFORESEEN = 'This error was not foreseen: run again with --debug for the stack.';
const LEFT_BEHIND = {
  rejection: 'A promise was rejected, and nobody waited for it',
  exception: 'An error was thrown where nobody could catch it',
};

/** The same for what reached the process itself: most often code of the user that was loaded into it has left it behind. */
export function reportLeftBehind(
  error: unknown,
  kind: 'rejection' | 'exception',
  debug: boolean,
  write?: (line: string) => void,
): void {
  const place = printable(thrownAt(error), { max: 1000 });
  const hint =
    place === ''
      ? `${LEFT_BEHIND[kind]}. ${UNFORESEEN}`
      : `${LEFT_BEHIND[kind]}${place}. Code that this process has loaded (an agent, a tool, a reward manager) has to await its promises, or catch what they throw.`;
  reportError(error, debug, write, hint);
}

/** Ours, or the operating system's (ENOENT, EACCES, ...), which says what it could not do. */
export function isForeseen(error: unknown): boolean {
  if (error instanceof TroupeError || error instanceof UsageError) return true;
  return types.isNativeError(error) && 'syscall' in error;
}
