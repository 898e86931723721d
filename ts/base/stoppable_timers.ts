// Timers that stand still together.
import { timerMs } from './timers';

interface OpenTimer {
  /** Milliseconds that are left. */
  left: number;
  run(): void;
  /** Since when it runs; null: it stands still. */
  since: number | null;
  timer: NodeJS.Timeout | null;
}

export class StoppableTimers {
  private readonly open = new Set<OpenTimer>();
  private stopped = false;

  /** Calls `run` once, when so much time has passed in which the timers did not stand still. @returns what takes that back */
  after(milliseconds: number, run: () => void): () => void {
    const one: OpenTimer = { left: milliseconds, run, since: null, timer: null };
    this.open.add(one);
    if (!this.stopped) this.start(one);
    return () => {
      this.halt(one);
      this.open.delete(one);
    };
  }

  stop(): void {
    this.stopped = true;
    for (const one of this.open) this.halt(one);
  }

  go(): void {
    this.stopped = false;
    for (const one of this.open) if (one.since === null) this.start(one);
  }

  private start(one: OpenTimer): void {
    one.since = performance.now();
    one.timer = setTimeout(() => {
      this.open.delete(one);
      one.run();
    }, timerMs(one.left));
  }

  private halt(one: OpenTimer): void {
    if (one.since === null || one.timer === null) return;
    clearTimeout(one.timer);
    one.left = Math.max(0, one.left - (performance.now() - one.since));
    one.since = null;
  }
}
