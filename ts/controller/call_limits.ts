// How long a call of an engine may take before it counts as hanging, from how long such calls have taken.
import { type CallWork, growth } from './call_work';

export interface CallLimitOptions {
  /** Milliseconds for every call, whatever was measured; null: from measured times. */
  fixedMs: number | null;
  /** Times as long as the slowest call so far, for as much work. */
  factor: number;
  /** The least limit, in milliseconds. */
  floorMs: number;
}

interface Slowest {
  ms: number;
  work: CallWork;
}

/**
 * Rounds of all ranks that are remembered of each verb: the slowest. The last ones would not do: after many turns of a rollout that
 * decode, one that takes up a prompt of thousands of tokens would look like a worker that hangs.
 */
const ROUNDS = 16;
/** Their time is that of a disk, which others may keep busy for minutes. */
const OF_A_DISK: ReadonlySet<string> = new Set(['importTensors', 'exportTensors']);

/** The answers of one verb: of each round of the ranks the slowest, as if it had had the least of the work. */
class Rounds {
  private readonly rounds: Slowest[] = [];
  private answers = 0;

  constructor(private readonly ranks: number) {}

  add(ms: number, work: CallWork): void {
    const last = this.rounds.at(-1);
    if (last === undefined || this.answers++ % this.ranks === 0) {
      this.answers = 1;
      if (this.rounds.length >= ROUNDS) this.forgetFastest();
      this.rounds.push({ ms, work });
      return;
    }
    last.ms = Math.max(last.ms, ms);
    last.work = {
      tokens: Math.min(last.work.tokens, work.tokens),
      longest: Math.min(last.work.longest, work.longest),
    };
  }

  private forgetFastest(): void {
    const least = Math.min(...this.rounds.map((round) => round.ms));
    this.rounds.splice(
      this.rounds.findIndex((round) => round.ms === least),
      1,
    );
  }

  /** The longest that as much work would have taken. */
  expected(work: CallWork): number {
    return Math.max(...this.rounds.map((round) => round.ms * growth(work, round.work)));
  }
}

export class CallLimits {
  private readonly verbs = new Map<string, Rounds>();

  /** `ranks`: that make each call together. */
  constructor(
    private readonly options: CallLimitOptions,
    private readonly ranks: number,
  ) {}

  /** A call that was answered. `verb`: with the engine. */
  measured(verb: string, work: CallWork, ms: number): void {
    if (!isLimited(verb)) return;
    let rounds = this.verbs.get(verb);
    if (rounds === undefined) {
      rounds = new Rounds(this.ranks);
      this.verbs.set(verb, rounds);
    }
    rounds.add(ms, work);
  }

  /** Milliseconds, and where they are from; null: nothing is known yet, or it may take what it takes. */
  of(verb: string, work: CallWork): { ms: number; why: string } | null {
    const { fixedMs, factor, floorMs } = this.options;
    if (!isLimited(verb)) return null;
    if (fixedMs !== null) return { ms: fixedMs, why: 'trainer.worker_timeouts.call' };
    const rounds = this.verbs.get(verb);
    if (rounds === undefined || factor === 0) return null;
    const expected = rounds.expected(work);
    const slowest = `the slowest call so far took ${seconds(expected)} s for as much work`;
    return factor * expected > floorMs
      ? { ms: factor * expected, why: `${slowest}, times trainer.worker_timeouts.call_factor` }
      : { ms: floorMs, why: `trainer.worker_timeouts.call_floor; ${slowest}` };
  }
}

/** "updatePolicy of 'actor'" */
const isLimited = (verb: string): boolean =>
  verb.includes(' of ') && !OF_A_DISK.has(verb.slice(0, verb.indexOf(' ')));

const seconds = (ms: number): string => (ms / 1000).toPrecision(2);
