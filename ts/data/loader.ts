import { show } from '../base/text';
import { TroupeError } from '../errors';
import { permutation } from './shuffle';

export interface LoaderOptions {
  batchSize: number;
  /** Key of the configuration that says so, for errors. data.train_batch_size */
  batchSizeKey?: string;
  shuffle: boolean;
  seed: number;
  /** Digest of the samples, where they are made anew at every start. */
  content?: string;
}

/** Where a loader stands: `position` samples of the order of epoch `epoch` have been handed out or passed over. */
export interface LoaderState {
  epoch: number;
  position: number;
  /** Of the data set and the order, so that a resumed run cannot silently see other samples. */
  size: number;
  seed: number;
  shuffle: boolean;
  content?: string;
}

/** Where samples are in the order of an epoch, and what that order is. */
export interface Place {
  epoch: number;
  from: number;
  order(epoch: number): Int32Array;
}

/** Reads samples by index; null for one that is not to be used. `place`: where the first of them is, and so what will be asked for next. */
export type LoadSamples<T> = (indices: Int32Array, place: Place) => Promise<readonly (T | null)[]>;

/**
 * Endless batches: a new order every epoch, from (seed, epoch) alone; the incomplete batch at the end of an epoch is
 * dropped, as in verl. Samples that are not to be used are passed over, so that the order is the same whether they have been
 * found out before or not. The position is exact to the sample.
 */
export class BatchLoader<T> {
  private epoch = 0;
  private position = 0;
  /** Of the running epoch and of the next. */
  private readonly orders = new Map<number, Int32Array>();

  constructor(
    private readonly size: number,
    private readonly load: LoadSamples<T>,
    private readonly options: LoaderOptions,
  ) {
    checkEnough(size, options);
  }

  /** @param usable samples that are not passed over @throws TroupeError INVALID_DATA when they are fewer than one batch */
  batchesPerEpoch(usable: number = this.size): number {
    checkEnough(usable, this.options);
    return Math.floor(usable / this.options.batchSize);
  }

  /** The next batch. When it cannot be read the position stays where it was. */
  async next(): Promise<{ samples: T[]; epoch: number }> {
    const { batchSize } = this.options;
    let { epoch, position } = this;
    const fromStart = position === 0;
    for (let turn = 0; ; turn++) {
      for (const known of this.orders.keys()) if (known !== epoch) this.orders.delete(known);
      const load = (from: number, to: number): Promise<readonly (T | null)[]> =>
        this.load(this.orderOf(epoch).slice(from, to), { epoch, from, order: (e) => this.orderOf(e) });
      const samples: T[] = [];
      while (samples.length < batchSize && position + batchSize - samples.length <= this.size) {
        const end = position + batchSize - samples.length;
        for (const sample of await load(position, end)) if (sample !== null) samples.push(sample);
        position = end;
      }
      if (samples.length === batchSize) {
        Object.assign(this, { epoch, position });
        return { samples, epoch };
      }
      // A whole epoch without one batch: the next would be like it.
      if (fromStart || turn > 0) {
        const rest = await load(position, this.size);
        checkEnough(samples.length + rest.filter((sample) => sample !== null).length, this.options);
      }
      epoch++;
      position = 0;
    }
  }

  state(): LoaderState {
    const { seed, shuffle, content } = this.options;
    const order = { epoch: this.epoch, position: this.position, size: this.size, seed, shuffle };
    return content === undefined ? order : { ...order, content };
  }

  /** @throws TroupeError INVALID_DATA when the state is of another data set or order */
  restore(state: unknown): void {
    const saved = checkedState(state);
    const here = this.state();
    for (const key of ['size', 'seed', 'shuffle'] as const) {
      if (saved[key] !== here[key]) {
        throw new TroupeError(
          'INVALID_DATA',
          `[data] cannot resume: the checkpoint was made with ${key === 'size' ? 'a data set of' : key} ${saved[key]}, now it is ${here[key]}: ` +
            `go on with ${key === 'size' ? 'those rows (data.train_files, data.train_max_samples)' : `that data.${key}`}, or begin anew (trainer.resume_mode=disable)`,
        );
      }
    }
    if (saved.content !== here.content) {
      const what = (one?: string): string =>
        one === undefined ? 'files' : `a class (data.custom_cls), SHA-256 ${one.slice(0, 12)}`;
      throw new TroupeError(
        'INVALID_DATA',
        `[data] cannot resume: the checkpoint was made with the rows of ${what(saved.content)}, now they are those of ${what(here.content)}: expected the same ` +
          'rows at every start (a class that draws needs a seed), or begin anew (trainer.resume_mode=disable)',
      );
    }
    const natural = (value: number): boolean => Number.isSafeInteger(value) && value >= 0;
    if (!natural(saved.epoch) || !natural(saved.position) || saved.position > this.size) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] cannot resume: expected an epoch from 0 and a position from 0 to ${this.size} in the checkpoint, but got epoch ` +
          `${saved.epoch} and position ${saved.position}`,
      );
    }
    this.epoch = saved.epoch;
    this.position = saved.position;
  }

  private orderOf(epoch: number): Int32Array {
    const known = this.orders.get(epoch);
    if (known !== undefined) return known;
    const { shuffle, seed } = this.options;
    const indices = shuffle
      ? permutation(this.size, seed, epoch)
      : Int32Array.from({ length: this.size }, (_, i) => i);
    this.orders.set(epoch, indices);
    return indices;
  }
}

/** @throws TroupeError INVALID_DATA when there is not one batch */
export function checkEnough(
  samples: number,
  { batchSize, batchSizeKey = 'data.train_batch_size' }: Pick<LoaderOptions, 'batchSize' | 'batchSizeKey'>,
): void {
  if (samples >= batchSize) return;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] the training set has ${samples} usable samples, fewer than one batch (${batchSizeKey} ${batchSize})`,
  );
}

function checkedState(state: unknown): LoaderState {
  if (typeof state === 'object' && state !== null) return state as LoaderState;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] cannot resume: expected the position of the data loader in the checkpoint, but got ${show(state)}`,
  );
}
