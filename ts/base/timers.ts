// Waits longer than a timer of Node can be, and limits of time.
import { setTimeout as sleepOnce } from 'node:timers/promises';

/** The longest wait that Node's timers know, 24.8 days: they take a longer one for none at all. */
const LONGEST = 2 ** 31 - 1;

/** Milliseconds as a timer takes them. */
export const timerMs = (milliseconds: number): number => Math.min(Math.ceil(milliseconds), LONGEST);

/**
 * Aborted with `signal`, or after so many milliseconds. In Node 20 an AbortSignal.timeout that nothing but AbortSignal.any knows is collected as
 * garbage before its time, and never comes.
 */
export function limited(signal: AbortSignal, milliseconds: number): AbortSignal {
  const late = new AbortController();
  const abort = (): void =>
    late.abort(new DOMException('The operation was aborted due to timeout', 'TimeoutError'));
  setTimeout(abort, timerMs(milliseconds)).unref();
  return AbortSignal.any([signal, late.signal]);
}

/** Waits, however long it is. */
export async function sleep(milliseconds: number): Promise<void> {
  for (let left = milliseconds; left > 0; left -= LONGEST) await sleepOnce(timerMs(left));
}
