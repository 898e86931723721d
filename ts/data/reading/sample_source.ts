// Where the samples of a run come from: read in place, or in threads where there are many.
import { type Dataset, samplesOf } from '../dataset';
import type { LoadSamples } from '../loader';
import type { DatasetSpec } from './protocol';
import { ReadAhead } from './read_ahead';
import { SampleThreads } from './sample_threads';

/** Data of up to so many bytes are read in place: that takes seconds, and threads have to be started. */
const IN_PLACE_BYTES = 8 * 2 ** 20;
/** Of rows as the files have them, and no more rows than this, in each of two windows. */
const WINDOW_BYTES = 64 * 2 ** 20;
const WINDOW_ROWS = 65_536;

export class SampleSource<T> {
  readonly load: LoadSamples<T>;

  private constructor(
    private readonly dataset: Dataset<T>,
    /** null: samples are read in place, when they are asked for. */
    readonly threads: SampleThreads<T> | null,
  ) {
    this.load = threads ? this.readAhead(threads).load : (indices) => samplesOf(dataset, indices);
  }

  static of<T>(dataset: Dataset<T>, spec: DatasetSpec): SampleSource<T> {
    const { rows } = dataset;
    if (rows.bytes <= IN_PLACE_BYTES) return new SampleSource(dataset, null);
    // What has been read to check it is read by the threads from now on.
    rows.files.forget();
    return new SampleSource(dataset, new SampleThreads<T>(spec, rows));
  }

  get length(): number {
    return this.dataset.rows.length;
  }

  /** Every sample that is to be used, in the order of the files. @throws TroupeError of the first that cannot be read */
  async all(): Promise<T[]> {
    return (await this.everyone()).filter((sample) => sample !== null);
  }

  /** `load` of samples that are all read now, where they are few. @throws TroupeError of the first that cannot be read */
  async checkedLoad(): Promise<LoadSamples<T>> {
    if (this.threads) return this.load;
    const samples = await this.everyone();
    return async (indices) => Array.from(indices, (i) => samples[i] as T | null);
  }

  async close(): Promise<void> {
    await this.threads?.close();
  }

  private async everyone(): Promise<readonly (T | null)[]> {
    const indices = Int32Array.from({ length: this.length }, (_, i) => i);
    if (!this.threads) return await samplesOf(this.dataset, indices);
    // At once, not in windows of the files' order: these would be of one thread's share after another's.
    const samples = await this.threads.read(indices);
    return Array.from(indices, (i) => samples.at(i));
  }

  private readAhead(threads: SampleThreads<T>): ReadAhead<T> {
    const { rows } = this.dataset;
    const fitting = Math.floor(WINDOW_BYTES / (rows.bytes / rows.length));
    return new ReadAhead(threads, Math.max(1, Math.min(fitting, WINDOW_ROWS)));
  }
}
