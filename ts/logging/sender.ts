import { reasonOf } from '../base/text';
import { RefusedError } from './http_client';
import type { RunOutcome } from './logger';

/** Something to send; `points`: how many values it holds. */
export interface Sendable {
  readonly points: number;
}

/** The far end of a {@link Sender}. All may throw; all stop when `signal` aborts. */
export interface Receiver<Item extends Sendable> {
  /** Before anything is sent: finds or makes the run on the server. */
  start(signal: AbortSignal): Promise<void>;
  /** Items in the order in which they were pushed. After an error the same items come again. */
  send(items: readonly Item[], signal: AbortSignal): Promise<void>;
  /** After all was sent. */
  finish(outcome: RunOutcome, signal: AbortSignal): Promise<void>;
}

export interface SenderLimits {
  /** Values that wait at most; the oldest give way. */
  readonly capacity: number;
  /** Items per call of `send`. */
  readonly batch: number;
  /** Seconds that a call of the receiver may take. */
  readonly timeout: number;
  /** Seconds that `close` may take. */
  readonly flush: number;
  /** Seconds before the first repetition; doubled for each further one, up to `maxPause`. */
  readonly pause: number;
  readonly maxPause: number;
}

/**
 * Sends items in the background: `push` never waits, and a server that is slow, dead or refuses costs points, not time. One
 * warning says what is wrong, another one at the end how many points are missing.
 */
export class Sender<Item extends Sendable> {
  private readonly queue: Item[] = [];
  private queued = 0;
  private pushed = 0;
  private dropped = 0;
  private started = false;
  private refused = false;
  private warned = false;
  private closing = false;
  private busy: Promise<void> | null = null;
  private endPause: (() => void) | null = null;
  /** Ends what is under way when the time to flush is over. */
  private readonly stop = new AbortController();

  constructor(
    private readonly name: string,
    private readonly receiver: Receiver<Item>,
    private readonly limits: SenderLimits,
    private readonly warn: (line: string) => void,
  ) {
    this.work();
  }

  /** True when all that was pushed has been sent. */
  get idle(): boolean {
    return this.busy === null;
  }

  push(item: Item): void {
    if (this.closing) return;
    this.pushed += item.points;
    if (this.refused) {
      this.dropped += item.points;
      return;
    }
    this.queue.push(item);
    this.queued += item.points;
    while (this.queued > this.limits.capacity && this.queue.length > 1) this.drop(this.queue.shift() as Item);
    this.work();
  }

  /** Sends what is left, for as long as `flush` allows. Never throws. */
  async close(outcome: RunOutcome): Promise<void> {
    this.closing = true;
    const timer = setTimeout(() => {
      this.stop.abort();
      this.endPause?.();
    }, this.limits.flush * 1000);
    this.endPause?.();
    await this.busy;
    if (!this.refused) await this.attempt((signal) => this.receiver.finish(outcome, signal));
    clearTimeout(timer);
    for (const item of this.queue.splice(0)) this.drop(item);
    if (this.dropped > 0) {
      this.warn(
        `${this.name}: ${this.dropped} of ${this.pushed} points were not sent; all are in metrics.jsonl and timings.jsonl`,
      );
    }
  }

  private drop(item: Item): void {
    this.queued -= item.points;
    this.dropped += item.points;
  }

  private work(): void {
    // `busy` is null again before anything else can run: no item is left behind between two rounds.
    this.busy ??= this.sendAll();
  }

  private async sendAll(): Promise<void> {
    // Not in the caller's turn: the receiver may still be under construction.
    await Promise.resolve();
    if (!this.started) {
      this.started = await this.attempt((signal) => this.receiver.start(signal));
      this.refused = !this.started;
    }
    while (this.started && this.queue.length > 0 && !this.stop.signal.aborted) {
      const items = this.queue.splice(0, this.limits.batch);
      const points = items.reduce((sum, item) => sum + item.points, 0);
      this.queued -= points;
      if (!(await this.attempt((signal) => this.receiver.send(items, signal)))) this.dropped += points;
    }
    if (this.refused) for (const item of this.queue.splice(0)) this.drop(item);
    this.busy = null;
  }

  /** Repeats until it works, is refused or time is up; true when it worked. */
  private async attempt(work: (signal: AbortSignal) => Promise<void>): Promise<boolean> {
    for (let pause = this.limits.pause; !this.stop.signal.aborted; pause *= 2) {
      try {
        await this.timed(work);
        return true;
      } catch (error) {
        this.warnOnce(error);
        if (error instanceof RefusedError) return false;
      }
      // At the end of a run there is no time for long pauses.
      await this.wait(this.closing ? this.limits.pause : Math.min(pause, this.limits.maxPause));
    }
    return false;
  }

  private async timed(work: (signal: AbortSignal) => Promise<void>): Promise<void> {
    const call = new AbortController();
    const { timeout } = this.limits;
    const timer = setTimeout(() => call.abort(new Error(`no answer within ${timeout} s`)), timeout * 1000);
    const stop = (): void => call.abort(new Error('the time to flush is over'));
    this.stop.signal.addEventListener('abort', stop);
    try {
      await work(call.signal);
    } finally {
      clearTimeout(timer);
      this.stop.signal.removeEventListener('abort', stop);
    }
  }

  private async wait(seconds: number): Promise<void> {
    if (this.stop.signal.aborted) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, seconds * 1000);
      this.endPause = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.endPause = null;
  }

  private warnOnce(error: unknown): void {
    if (this.warned) return;
    this.warned = true;
    const then =
      error instanceof RefusedError
        ? 'what it refuses is not sent'
        : `trying again; up to ${this.limits.capacity} points wait`;
    this.warn(`${this.name} failed, the run goes on (${then}): ${reasonOf(error)}`);
  }
}
