// The smallest and the largest value of each block of a column: a curve of a million points is thinned out without a look at each of them.

/** Values of a block. Small enough that the ends of a range cost little, large enough that the blocks are few. */
const BLOCK = 128;

/** Indices of the smallest and the largest finite value, the first of equal ones; -1: there is none. */
export type LowHigh = readonly [low: number, high: number];

/** Finds it in [start, end) by looking at every value. */
export function lowHigh(values: ArrayLike<number>, start: number, end: number): LowHigh {
  let [low, high] = [-1, -1];
  for (let i = start; i < end; i++) {
    const value = values[i] as number;
    if (!Number.isFinite(value)) continue;
    if (low < 0 || value < (values[low] as number)) low = i;
    if (high < 0 || value > (values[high] as number)) high = i;
  }
  return [low, high];
}

/** Of values that are added at the end, and taken away there. */
export class Extremes {
  private readonly lows: number[] = [];
  private readonly highs: number[] = [];

  /** Values from `length` on are not there any more, or are others. */
  truncate(length: number): void {
    const blocks = Math.floor(length / BLOCK);
    if (this.lows.length > blocks) this.lows.length = this.highs.length = blocks;
  }

  /** As lowHigh, of the same values as before and those that have been added. */
  find(values: ArrayLike<number>, start: number, end: number): LowHigh {
    const first = Math.ceil(start / BLOCK);
    const last = Math.floor(end / BLOCK);
    if (first >= last) return lowHigh(values, start, end);
    this.extend(values, last);
    let [low, high] = lowHigh(values, start, first * BLOCK);
    const take = ([a, b]: LowHigh): void => {
      if (a >= 0 && (low < 0 || (values[a] as number) < (values[low] as number))) low = a;
      if (b >= 0 && (high < 0 || (values[b] as number) > (values[high] as number))) high = b;
    };
    for (let block = first; block < last; block++)
      take([this.lows[block] as number, this.highs[block] as number]);
    take(lowHigh(values, last * BLOCK, end));
    return [low, high];
  }

  private extend(values: ArrayLike<number>, blocks: number): void {
    for (let block = this.lows.length; block < blocks; block++) {
      const [low, high] = lowHigh(values, block * BLOCK, (block + 1) * BLOCK);
      this.lows.push(low);
      this.highs.push(high);
    }
  }
}
