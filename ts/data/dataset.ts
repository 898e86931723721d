// What a loader, and the threads that read for it, need of a data set.
import type { RowFiles } from './row_file';

/** Samples by number, read and tokenized when they are asked for. */
export interface Dataset<T> {
  readonly rows: ChosenRows;
  /** null: it is not to be used. @throws TroupeError INVALID_DATA naming file and row */
  sample(i: number): Promise<T | null>;
}

/** Of a range of prompts: how many are not too long, and how many tokens the shortest one has that was counted (else Infinity). */
export interface Usable {
  usable: number;
  shortest: number;
}

/** The rows of files that a data set is made of. */
export class ChosenRows {
  constructor(
    readonly files: RowFiles,
    /** Their numbers, ascending. */
    readonly numbers: Int32Array,
  ) {}

  get length(): number {
    return this.numbers.length;
  }

  /** Of what is read of them, uncompressed, were all rows of one size. */
  get bytes(): number {
    return this.files.bytes * (this.length / this.files.length);
  }

  /** First samples of `n` shares, as {@link RowFiles.shares} has them, and the number of samples. */
  shares(n: number): number[] {
    const first = (row: number): number => {
      const at = this.numbers.findIndex((number) => number >= row);
      return at === -1 ? this.length : at;
    };
    return [...this.files.shares(n).map(first), this.length];
  }
}

/**
 * Samples in the order of `indices`. They are read in the order of the files, one after another, so that each row group is
 * read once and no more than the file keeps are in memory.
 */
export async function samplesOf<T>(dataset: Dataset<T>, indices: ArrayLike<number>): Promise<(T | null)[]> {
  const out = new Array<T | null>(indices.length).fill(null);
  for (const at of inFileOrder(indices)) out[at] = await dataset.sample(indices[at] as number);
  return out;
}

/** Places in `indices`, of the smallest first. */
export function inFileOrder(indices: ArrayLike<number>): Int32Array {
  const places = Int32Array.from({ length: indices.length }, (_, at) => at);
  return places.sort((a, b) => (indices[a] as number) - (indices[b] as number));
}
