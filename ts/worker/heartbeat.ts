/**
 * Notices ranks that have gone silent. Silence is counted in ticks of our own timer, not in clock time: when this
 * process itself was blocked or stopped for a while, its workers are not to blame.
 */
export class HeartbeatMonitor {
  readonly #silent = new Map<number, number>();
  readonly #timer: NodeJS.Timeout;

  /** onSilent is called once per rank that has sent nothing for `deadTimeoutMs`, and a tick at most. */
  constructor(deadTimeoutMs: number, onSilent: (rank: number) => void) {
    // The first tick may come at once after a sign of life.
    const limit = ticksPerTimeout + 1;
    this.#timer = setInterval(() => {
      for (const [rank, ticks] of this.#silent) {
        this.#silent.set(rank, ticks + 1);
        if (ticks + 1 < limit) continue;
        this.#silent.delete(rank);
        onSilent(rank);
      }
    }, heartbeatInterval(deadTimeoutMs));
  }

  watch(rank: number): void {
    this.#silent.set(rank, 0);
  }

  /** Anything that comes from a rank is a sign of life. */
  heard(rank: number): void {
    if (this.#silent.has(rank)) this.#silent.set(rank, 0);
  }

  unwatch(rank: number): void {
    this.#silent.delete(rank);
  }

  stop(): void {
    clearInterval(this.#timer);
  }
}

const ticksPerTimeout = 10;

/** How often a worker should send a heartbeat so that a few may be late. */
export function heartbeatInterval(deadTimeoutMs: number): number {
  return deadTimeoutMs / ticksPerTimeout;
}
