import { TroupeError } from '../errors';
import { permutation } from './shuffle';

export interface LoaderOptions {
  batchSize: number;
  /** Key of the configuration that says so, for errors. data.train_batch_size */
  batchSizeKey?: string;
  shuffle: boolean;
  seed: number;
}

/** Where a loader stands: `position` samples of epoch `epoch` have been handed out. */
export interface LoaderState {
  epoch: number;
  position: number;
  /** Of the data set and the order, so that a resumed run cannot silently see other samples. */
  size: number;
  seed: number;
  shuffle: boolean;
}

/**
 * Endless batches of sample indices: a new order every epoch, from (seed, epoch) alone; the incomplete batch at the end of
 * an epoch is dropped, as in verl. The position is exact to the sample.
 */
export class BatchLoader {
  private epoch = 0;
  private position = 0;
  private order: Int32Array | null = null;

  constructor(
    private readonly size: number,
    private readonly options: LoaderOptions,
  ) {
    const { batchSize, batchSizeKey = 'data.train_batch_size' } = options;
    if (batchSize > size) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] the training set has ${size} usable samples, fewer than one batch (${batchSizeKey} ${batchSize})`,
      );
    }
  }

  get batchesPerEpoch(): number {
    return Math.floor(this.size / this.options.batchSize);
  }

  next(): { indices: Int32Array; epoch: number } {
    const { batchSize, shuffle, seed } = this.options;
    if (this.position + batchSize > this.size) {
      this.epoch++;
      this.position = 0;
      this.order = null;
    }
    this.order ??= shuffle
      ? permutation(this.size, seed, this.epoch)
      : Int32Array.from({ length: this.size }, (_, i) => i);
    const indices = this.order.slice(this.position, this.position + batchSize);
    this.position += batchSize;
    return { indices, epoch: this.epoch };
  }

  state(): LoaderState {
    const { seed, shuffle } = this.options;
    return { epoch: this.epoch, position: this.position, size: this.size, seed, shuffle };
  }

  restore(state: unknown): void {
    const saved = state as LoaderState;
    const here = this.state();
    for (const key of ['size', 'seed', 'shuffle'] as const) {
      if (saved[key] !== here[key]) {
        throw new TroupeError(
          'INVALID_DATA',
          `[data] cannot resume: the checkpoint was made with ${key === 'size' ? 'a data set of' : key} ${saved[key]}, now it is ${here[key]}`,
        );
      }
    }
    this.epoch = saved.epoch;
    this.position = saved.position;
    this.order = null;
  }
}
