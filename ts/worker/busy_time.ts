// How long this process has computed, or would have if it had been given a core: what it has not waited for others.
import { readdirSync, readFileSync } from 'node:fs';

/** Reading costs some microseconds per thread. */
const LEAST_MS = 20;
const THREADS = '/proc/self/task';

/**
 * The time of the busiest thread beside the main one, which only carries messages: that of the engine, or of a thread that computes with
 * it. A thread that waits for a collective or for a lock sleeps; one that waits for a core is busy, and late for its peers.
 */
export class BusyTime {
  /** What was last seen of each thread, those of which the list may lack now too. */
  readonly #before = new Map(read());
  #last = performance.now();

  /** Milliseconds since it was last asked; undefined: it was asked just now, or the kernel does not say. */
  take(): number | undefined {
    const now = performance.now();
    if (now - this.#last < LEAST_MS) return undefined;
    this.#last = now;
    let busiest = -1;
    for (const [thread, time] of read()) {
      busiest = Math.max(busiest, time - (this.#before.get(thread) ?? 0));
      this.#before.set(thread, time);
    }
    return busiest < 0 ? undefined : busiest / 1e6;
  }
}

/** Nanoseconds on a core and waiting for one, by thread. Where a thread ends meanwhile, the kernel's list may end before the others. */
function read(): [string, number][] {
  const times: [string, number][] = [];
  try {
    for (const thread of readdirSync(THREADS)) {
      if (thread === String(process.pid)) continue;
      const [ran, waited] = readFileSync(`${THREADS}/${thread}/schedstat`, 'utf8').split(' ').map(Number);
      times.push([thread, (ran as number) + (waited as number)]);
    }
  } catch {
    // There is no /proc, or a thread has ended meanwhile: what was read is what is known.
  }
  return times;
}
