// What one rendering of a template may cost. A template comes with a model, and may be made to run for ever.

/** Steps of one rendering, some seconds. A conversation of a hundred turns takes some tens of thousands. */
const MOST_STEPS = 2_000_000;
/** Characters of one text, the rendered one among them. */
const MOST_CHARACTERS = 2 ** 24;
/** Entries of one list. */
const MOST_ENTRIES = 2 ** 18;
/** Characters that are read or written in one step; comparisons of characters. */
const CHARACTERS_PER_STEP = 256;
const COMPARISONS_PER_STEP = 2048;
/** Of a text that is written between quotes, where each is looked at by itself. */
const QUOTED_PER_STEP = 16;

/** Called for every value that is looked at: lists that hold one list many times are longer than they seem. */
export type Spend = (steps: number) => void;

/** A text that is written between quotes. */
export const quotedSteps = (characters: number): number => characters / QUOTED_PER_STEP;
/** Two texts of one length that are compared. */
export const comparedSteps = (characters: number): number => characters / COMPARISONS_PER_STEP;

/** Of one rendering. Methods throw what says which limit was reached. */
export class Budget {
  private left = MOST_STEPS;

  readonly steps: Spend = (count) => {
    this.left -= count;
    if (this.left < 0) throw new Error(`it has not ended after ${MOST_STEPS} steps: does it loop for ever?`);
  };

  /** A text or a list that is read from end to end, or made; `times`: what that costs. Other values cost nothing. */
  whole(value: unknown, times = 1): void {
    if (typeof value === 'string') {
      if (value.length > MOST_CHARACTERS)
        throw new Error(`a text has more than ${MOST_CHARACTERS} characters`);
      this.steps((times * value.length) / CHARACTERS_PER_STEP);
    } else if (Array.isArray(value)) {
      if (value.length > MOST_ENTRIES) throw new Error(`a list has more than ${MOST_ENTRIES} entries`);
      this.steps(times * value.length);
    }
  }

  /** A search for one text in another. */
  search(text: unknown, pattern: unknown): void {
    if (typeof text !== 'string' || typeof pattern !== 'string') return;
    this.steps((text.length * Math.min(text.length, pattern.length)) / COMPARISONS_PER_STEP);
  }

  /** Texts of these lengths that are put in order. */
  order(lengths: readonly number[]): void {
    const all = lengths.reduce((sum, length) => sum + length, 0);
    this.steps((all * Math.log2(lengths.length + 1)) / CHARACTERS_PER_STEP);
  }

  /** Before a text of so many characters is made. */
  characters(count: number): void {
    if (count > MOST_CHARACTERS) throw new Error(`a text has more than ${MOST_CHARACTERS} characters`);
  }
}

/** As in the reference, whose sandbox refuses longer ones. */
const MOST_RANGE = 100_000;

/** Python's range(). */
export function range(first: unknown, second?: unknown, third?: unknown): number[] {
  const [start, stop] = second === undefined ? [0, first] : [first, second];
  const step = third ?? 1;
  if (!Number.isInteger(start) || !Number.isInteger(stop) || !Number.isInteger(step) || step === 0)
    throw new Error('range() expects integers, and a step that is not 0');
  const length = Math.max(0, Math.ceil(((stop as number) - (start as number)) / (step as number)));
  if (length > MOST_RANGE) throw new Error(`range() of ${length} numbers: expected at most ${MOST_RANGE}`);
  return Array.from({ length }, (_, i) => (start as number) + i * (step as number));
}
