// Where the samples of a run come from: read in place, or in threads where there are many.
import type { PromptImage, PromptImages } from '../../batch/prompt_image';
import { type Dataset, samplesOf } from '../dataset';
import type { LoadSamples } from '../loader';
import type { DatasetSpec } from './protocol';
import { ReadAhead } from './read_ahead';
import { SampleThreads } from './sample_threads';

/** Data of up to so many bytes, or samples with images, are read in place: that takes seconds, and threads have to be started. */
const IN_PLACE_BYTES = 8 * 2 ** 20;
const IN_PLACE_PICTURES = 64;
/** Of rows as the files have them, and no more rows than this, in each of two windows. */
const WINDOW_BYTES = 64 * 2 ** 20;
const WINDOW_ROWS = 65_536;
/** Of samples as they are read, in each of them: text has hardly more than in its file, images have many times as much. */
const WINDOW_READ_BYTES = 256 * 2 ** 20;
/** Samples with images that are read at a time, of so many stretches of the data, so that all threads have a part. */
const FEW = 8;
const STRETCHES = 4;

export class SampleSource<T extends { images?: PromptImages }> {
  readonly load: LoadSamples<T>;

  private constructor(
    private readonly dataset: Dataset<T>,
    /** null: samples are read in place, when they are asked for. */
    readonly threads: SampleThreads<T> | null,
    /** Samples have images. */
    private readonly pictured: boolean,
  ) {
    this.load = threads ? this.readAhead(threads).load : (indices) => samplesOf(dataset, indices);
  }

  static of<T extends { images?: PromptImages }>(dataset: Dataset<T>, spec: DatasetSpec): SampleSource<T> {
    const { rows } = dataset;
    const pictured = (spec.options.images ?? null) !== null;
    const few = pictured ? rows.length <= IN_PLACE_PICTURES : rows.bytes <= IN_PLACE_BYTES;
    if (few) return new SampleSource(dataset, null, pictured);
    // What has been read to check it is read by the threads from now on.
    rows.files.forget();
    return new SampleSource(dataset, new SampleThreads<T>(spec, rows), pictured);
  }

  get length(): number {
    return this.dataset.rows.length;
  }

  /** Every sample that is to be used, in the order of the files; their images are read, and read again when they are wanted. @throws TroupeError of one that cannot be read */
  async all(): Promise<T[]> {
    return (await this.everyone()).filter((sample) => sample !== null);
  }

  /** `load` of samples that are all read now, where they are few. @throws TroupeError of one that cannot be read */
  async checkedLoad(): Promise<LoadSamples<T>> {
    if (this.threads) return this.load;
    const samples = await this.everyone();
    return async (indices) => Array.from(indices, (i) => samples[i] as T | null);
  }

  /** Reads every sample and keeps none. @throws TroupeError of one that cannot be read */
  async check(): Promise<void> {
    for (const some of this.scattered(this.pictured ? FEW : Math.ceil(this.fitting / STRETCHES)))
      await this.read(some);
  }

  async close(): Promise<void> {
    await this.threads?.close();
  }

  private async everyone(): Promise<readonly (T | null)[]> {
    // At once, not in windows of the files' order: these would be of one thread's share after another's.
    if (!this.pictured) return await this.read(Int32Array.from({ length: this.length }, (_, i) => i));
    const out = new Array<T | null>(this.length).fill(null);
    for (const few of this.scattered(FEW)) {
      for (const [place, sample] of (await this.read(few)).entries()) {
        const i = few[place] as number;
        out[i] = sample === null ? null : this.kept(sample, i);
      }
    }
    return out;
  }

  /** All samples, up to `most` at a time of each of some stretches of the data. */
  private *scattered(most: number): Generator<Int32Array> {
    const stretch = Math.ceil(this.length / STRETCHES);
    for (let from = 0; from < stretch; from += most) {
      const size = Math.min(most, stretch - from);
      yield Int32Array.from(
        { length: STRETCHES * size },
        (_, k) => Math.floor(k / size) * stretch + from + (k % size),
      ).filter((i) => i < this.length);
    }
  }

  private async read(indices: Int32Array): Promise<(T | null)[]> {
    if (!this.threads) return await samplesOf(this.dataset, indices);
    const samples = await this.threads.read(indices);
    return Array.from(indices, (_, place) => samples.at(place));
  }

  /** Without the pixels of its images. */
  private kept(sample: T, i: number): T {
    if (typeof sample.images === 'function' || !sample.images?.length) return sample;
    const images = async (): Promise<readonly PromptImage[]> => {
      const [again] = await this.read(Int32Array.of(i));
      return again?.images as readonly PromptImage[];
    };
    return { ...sample, images };
  }

  /** Rows of a window. */
  private get fitting(): number {
    const { rows } = this.dataset;
    const most = Math.floor(WINDOW_BYTES / (rows.bytes / rows.length));
    return Math.max(1, Math.min(most, WINDOW_ROWS));
  }

  private readAhead(threads: SampleThreads<T>): ReadAhead<T> {
    return new ReadAhead(threads, this.fitting, WINDOW_READ_BYTES);
  }
}
