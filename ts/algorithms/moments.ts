import { TroupeError } from '../errors';

const MEAN_EPSILON = 1e-8;
const WHITEN_EPSILON = 1e-8;

/** What whitening does to a value: (v - mean) · scale. */
export interface Whitening {
  mean: number;
  scale: number;
}

/**
 * Count, mean and Σ (v - mean)² of numbers that come in parts, each summed up around a number of its own and merged (Chan,
 * Golub & LeVeque 1979). With one of the part's own numbers as that centre, Σ (v - centre)² is at most n times Σ (v - mean)²,
 * so a part of n numbers loses at most log2 n bits, however far the mean is from 0.
 */
export class Moments {
  private count = 0;
  private mean = 0;
  private squares = 0;

  /** Takes `count` numbers v; `sum` is Σ (v - centre), `squares` is Σ (v - centre)². */
  add(count: number, centre: number, sum: number, squares: number): void {
    if (count === 0) return;
    const total = this.count + count;
    const mean = centre + sum / count;
    const apart = mean - this.mean;
    this.squares += squares - sum * (sum / count) + apart * apart * ((this.count * count) / total);
    this.mean += (apart * count) / total;
    this.count = total;
  }

  /**
   * verl's masked_whiten: mean and unbiased variance with 1e-8 added to the count, (v - mean)/√(var + 1e-8).
   * @throws TroupeError INVALID_ARGUMENT when there are fewer than two numbers, NON_FINITE when one is NaN or infinite.
   */
  whitening(): Whitening {
    const { count } = this;
    if (count < 2) {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[algorithms] whitening needs at least two unmasked response tokens but the batch has ${count}: ` +
          'use longer responses or a larger batch',
      );
    }
    if (!Number.isFinite(this.squares)) {
      throw new TroupeError(
        'NON_FINITE',
        `[algorithms] expected finite numbers to whiten but their variance is ${this.squares}: a reward or a value under the mask is NaN or infinite`,
      );
    }
    const mean = (this.mean * count) / (count + MEAN_EPSILON);
    const squares = this.squares + count * (this.mean - mean) ** 2;
    const variance = ((squares / (count + MEAN_EPSILON)) * count) / (count - 1);
    return { mean, scale: 1 / Math.sqrt(variance + WHITEN_EPSILON) };
  }
}
