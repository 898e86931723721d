// Replacements of an engine's weights, piece by piece: one at a time, and after one that has failed half way nothing is computed until
// another has set all that it left.
import { TroupeError } from '../errors';

/** What is set as a whole. With adapters the weights are those below them. */
export type StatePart = 'weights' | 'adapter' | 'optimizer';

export type Replacement = 'importWeights' | 'updateWeights' | 'loadCheckpoint';

/** How a message calls it. */
const NAMES: Readonly<Record<Replacement, string>> = {
  importWeights: 'importWeights',
  updateWeights: 'updateWeights of a directory',
  loadCheckpoint: 'loadCheckpoint',
};

export class WeightReplacement {
  private running: { over: Promise<void>; end(): void } | null = null;
  /** Why the weights cannot be used, and what has to be set before they can. */
  private torn: { why: string; parts: readonly StatePart[] } | null = null;

  /** `sets`: of those that there are, what each sets. */
  constructor(
    private readonly role: string,
    private readonly sets: Readonly<Partial<Record<Replacement, readonly StatePart[]>>>,
  ) {}

  /** Resolves when the one under way has ended, well or not, or nobody waits for it any more; null: there is none. */
  get over(): Promise<void> | null {
    return this.running?.over ?? null;
  }

  /** Whether a part of the weights is left from a replacement that has failed: the next one must bring all of them. */
  get leftHalf(): boolean {
    return this.running === null && this.torn !== null;
  }

  /** @throws INVALID_MODEL where one is under way, or has failed half way */
  check(): void {
    if (this.torn !== null) throw new TroupeError('INVALID_MODEL', `[${this.role}] ${this.torn.why}`);
  }

  /** Runs `replace`, which calls `touch` before it sets the first piece. */
  async run<T>(what: Replacement, replace: (touch: () => void) => Promise<T>): Promise<T> {
    if (this.running !== null) {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[${what}] the weights are being replaced already: wait for it`,
      );
    }
    const before = this.torn;
    const parts = this.sets[what] ?? [];
    // What it leaves as it is would be neither the old nor the new.
    if (before !== null && !covers(parts, before.parts)) this.check();
    let end = (): void => {};
    const over = new Promise<void>((resolve) => {
      end = resolve;
    });
    this.running = { over, end };
    let touched = false;
    this.torn = { why: `${what} is replacing the weights: wait for it`, parts };
    try {
      const result = await replace(() => {
        touched = true;
      });
      this.torn = null;
      return result;
    } catch (error) {
      this.torn = before;
      if (touched) {
        const remedy = `the ${this.role} refuses all work until ${this.remedies(parts)} succeeds`;
        if (error instanceof Error) error.message += `; a part of the weights had been replaced: ${remedy}`;
        const why = `${what} failed after it had replaced a part of the weights, so they are neither the old ones nor the new: ${remedy}`;
        this.torn = { why, parts };
      }
      throw error;
    } finally {
      this.running = null;
      end();
    }
  }

  /** Nobody waits any more. */
  abandon(): void {
    this.running?.end();
  }

  private remedies(parts: readonly StatePart[]): string {
    const names = Object.entries(this.sets)
      .filter(([, sets]) => covers(sets, parts))
      .map(([what]) => NAMES[what as Replacement]);
    const last = names.pop() as string;
    return names.length === 0 ? last : `${names.join(', ')} or ${last}`;
  }
}

const covers = (sets: readonly StatePart[], parts: readonly StatePart[]): boolean =>
  parts.every((part) => sets.includes(part));
