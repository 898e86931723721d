// The tokens under the mask, and statistics over them with verl's conventions: a mean divides by (count + 1e-8), also
// that of a sequence without any such token (0). All in double.
import type { NumberArray } from '../ragged';

export const MEAN_EPSILON = 1e-8;
/** Bound on |log ratio| before an exponential. */
export const SAFETY_BOUND = 20;

/** NaN stays NaN. */
export const clamp = (value: number, low: number, high: number): number =>
  Math.max(low, Math.min(value, high));

// Loops instead of typed arrays' map, from and reduce, which are several times slower: there are millions of tokens.

/** f of each value. */
export function each(values: NumberArray, f: (value: number, n: number) => number): Float64Array {
  const out = new Float64Array(values.length);
  for (let n = 0; n < out.length; n++) out[n] = f(values[n] as number, n);
  return out;
}

/** values[indices[n]] for each n. */
function gather(values: NumberArray, indices: Int32Array): Float64Array {
  const out = new Float64Array(indices.length);
  for (let n = 0; n < out.length; n++) out[n] = values[indices[n] as number] as number;
  return out;
}

/** The N tokens whose mask is 1, of B sequences. */
export class ValidTokens {
  /** [N] positions in the response-token columns. */
  readonly index: Int32Array;
  /** [N] sequence of each. */
  readonly row: Int32Array;
  /** [B] how many there are in each sequence. */
  readonly counts: Float64Array;

  constructor(offsets: NumberArray, mask: NumberArray) {
    const rows = offsets.length - 1;
    this.counts = new Float64Array(rows);
    let total = 0;
    for (let t = 0; t < mask.length; t++) if (mask[t]) total++;
    this.index = new Int32Array(total);
    this.row = new Int32Array(total);
    let n = 0;
    for (let i = 0; i < rows; i++) {
      const start = n;
      for (let t = offsets[i] as number; t < (offsets[i + 1] as number); t++) {
        if (!mask[t]) continue;
        this.index[n] = t;
        this.row[n++] = i;
      }
      this.counts[i] = n - start;
    }
  }

  /** N */
  get count(): number {
    return this.index.length;
  }

  /** B */
  get rows(): number {
    return this.counts.length;
  }

  /** Of two columns at the valid tokens, [N]: a - b. */
  differences(a: NumberArray, b: NumberArray): Float64Array {
    return each(this.index, (t) => (a[t] as number) - (b[t] as number));
  }

  /** Σ f(value) / (N + 1e-8). */
  mean(values: NumberArray, f: (value: number) => number = (value) => value): number {
    let sum = 0;
    for (let n = 0; n < values.length; n++) sum += f(values[n] as number);
    return sum / (this.count + MEAN_EPSILON);
  }

  /** Share of tokens for which `test` holds. */
  share(values: Float64Array, test: (value: number) => boolean): number {
    return this.mean(values, (value) => (test(value) ? 1 : 0));
  }

  /** Sum over each sequence, [B]; 0 for an empty one. */
  rowSums(values: Float64Array): Float64Array {
    const sums = new Float64Array(this.rows);
    for (let n = 0; n < values.length; n++) sums[this.row[n] as number]! += values[n] as number;
    return sums;
  }

  /** Mean over each sequence, [B]; 0 for an empty one. */
  rowMeans(values: Float64Array): Float64Array {
    return this.rowSums(values).map((sum, i) => sum / ((this.counts[i] as number) + MEAN_EPSILON));
  }

  /** Largest of each sequence, [B]; 0 for an empty one. */
  rowMaxima(values: Float64Array): Float64Array {
    const maxima = new Float64Array(this.rows).fill(Number.NEGATIVE_INFINITY);
    for (let n = 0; n < values.length; n++) {
      const i = this.row[n] as number;
      maxima[i] = Math.max(maxima[i] as number, values[n] as number);
    }
    return maxima.map((maximum) => (maximum === Number.NEGATIVE_INFINITY ? 0 : maximum));
  }

  /** One value per sequence, on each of its tokens, [N]. */
  spread(perRow: Float64Array): Float64Array {
    return gather(perRow, this.row);
  }

  /** √(E x² − (E x)²) of values clamped to [low, high]; 0 with fewer than two tokens. */
  clampedDeviation(values: Float64Array, low: number, high: number): number {
    if (this.count < 2) return 0;
    const mean = this.mean(values, (value) => clamp(value, low, high));
    const square = this.mean(values, (value) => clamp(value, low, high) ** 2);
    return Math.sqrt(Math.max(square - mean * mean, 0));
  }
}

/** Largest and smallest of a non-empty list. */
export function range(values: Float64Array): { max: number; min: number } {
  let max = Number.NEGATIVE_INFINITY;
  let min = Number.POSITIVE_INFINITY;
  for (let n = 0; n < values.length; n++) {
    max = Math.max(max, values[n] as number);
    min = Math.min(min, values[n] as number);
  }
  return { max, min };
}

/** Plain statistics of a non-empty list of sequences. */
export function describeRows(values: Float64Array): {
  mean: number;
  std: number;
  max: number;
  min: number;
  share: (test: (value: number) => boolean) => number;
} {
  const count = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / count;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return {
    mean,
    /** Unbiased; 0 of one sequence. */
    std: count > 1 ? Math.sqrt(squares / (count - 1)) : 0,
    ...range(values),
    share: (test) => values.reduce((n, value) => (test(value) ? n + 1 : n), 0) / count,
  };
}
