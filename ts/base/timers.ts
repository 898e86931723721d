// Waits longer than a timer of Node can be.
import { setTimeout as sleepOnce } from 'node:timers/promises';

/** The longest wait that Node's timers know, 24.8 days: they take a longer one for none at all. */
const LONGEST = 2 ** 31 - 1;

/** Milliseconds as a timer takes them. */
export const timerMs = (milliseconds: number): number => Math.min(Math.ceil(milliseconds), LONGEST);

/** Waits, however long it is. */
export async function sleep(milliseconds: number): Promise<void> {
  for (let left = milliseconds; left > 0; left -= LONGEST) await sleepOnce(timerMs(left));
}
