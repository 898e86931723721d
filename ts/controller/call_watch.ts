// Watches what the ranks are at, and says when one is at it for longer than it ever should be.
import { type CallLimitOptions, CallLimits } from './call_limits';
import type { AnsweredCall, PendingCall } from './worker_requests';

export interface Overdue {
  /** Ranks that are at it. */
  ranks: number[];
  what: string;
  /** Milliseconds. */
  ms: number;
  /** Where the limit is from. */
  why: string;
}

interface Watched {
  readonly rank: number;
  readonly client: { readonly oldest: PendingCall | null };
}

const TICK_MS = 250;

export class CallWatch {
  readonly #limits: CallLimits;
  readonly #members: readonly Watched[];
  readonly #timer: NodeJS.Timeout;
  readonly #onOverdue: (overdue: Overdue) => void;
  /** How much of the time since a call began this process was not there to see. */
  #away = 0;
  #last = performance.now();
  readonly #awayAt = new Map<number, { begun: number; away: number }>();

  /** `onOverdue` is called once at most. */
  constructor(options: CallLimitOptions, members: readonly Watched[], onOverdue: (overdue: Overdue) => void) {
    this.#limits = new CallLimits(options, members.length);
    this.#members = members;
    this.#onOverdue = onOverdue;
    this.#timer = setInterval(() => this.#look(performance.now()), TICK_MS);
    this.#timer.unref();
  }

  answered({ what, work, begun, end }: AnsweredCall): void {
    this.#limits.measured(what, work, end - begun);
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #look(now: number): void {
    // A machine that slept, or a process that was stopped, is not to blame on the workers.
    this.#away += Math.max(0, now - this.#last - 2 * TICK_MS);
    this.#last = now;
    const over: { rank: number; what: string; ms: number; why: string }[] = [];
    for (const { rank, client } of this.#members) {
      const call = client.oldest;
      if (call === null) continue;
      const ms = now - call.begun - this.#awaySince(rank, call);
      const limit = this.#limits.of(call.what, call.work);
      if (limit !== null && ms > limit.ms) over.push({ rank, what: call.what, ms, why: limit.why });
    }
    const [first] = over;
    if (first === undefined) return;
    this.stop();
    this.#onOverdue({ ...first, ranks: over.map(({ rank }) => rank) });
  }

  #awaySince(rank: number, { begun }: PendingCall): number {
    const known = this.#awayAt.get(rank);
    if (known?.begun === begun) return this.#away - known.away;
    this.#awayAt.set(rank, { begun, away: this.#away });
    return 0;
  }
}
