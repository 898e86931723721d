// Samples in the order of a loader, read before they are asked for.
import type { LoadSamples, Place } from '../loader';
import type { ReadSamples } from './sample_threads';

/** Samples from..to of the order of an epoch. */
interface Window<T> {
  epoch: number;
  from: number;
  to: number;
  samples: Promise<ReadSamples<T>>;
}

/**
 * Rows of a shuffled order lie all over their files, so that every batch would have to read all of them. Windows of many batches
 * are read at once, each row group once for all of them; while batches are taken from one window, the next is read. The first windows
 * are small: a run should not wait for samples that it needs in an hour.
 */
export class ReadAhead<T> {
  private current: Window<T> | null = null;
  private next: Window<T> | null = null;
  /** Of a sample, as the last window has them; 0: there was none. */
  private sampleBytes = 0;

  /** Of a window, of which there are two. `most`: samples; `mostBytes`: of them as they are read, as far as the window before tells, since images have many times those of their files. */
  constructor(
    private readonly reader: { read(indices: Int32Array): Promise<ReadSamples<T>> },
    private readonly most: number,
    private readonly mostBytes: number,
  ) {}

  readonly load: LoadSamples<T> = async (indices, place) => {
    const out: (T | null)[] = [];
    const end = place.from + indices.length;
    for (let at = place.from; at < end; ) {
      const window = this.window(at, end, place);
      const samples = await window.samples;
      this.sampleBytes = samples.bytes / (window.to - window.from);
      this.next ??= this.following(window, place);
      for (; at < Math.min(end, window.to); at++) out.push(samples.at(at - window.from));
    }
    return out;
  };

  /** The window of a sample that is wanted now. */
  private window(at: number, end: number, place: Place): Window<T> {
    const holds = (window: Window<T> | null): boolean =>
      window !== null && window.epoch === place.epoch && window.from <= at && at < window.to;
    if (!holds(this.current)) {
      this.current = holds(this.next) ? this.next : this.begin(place.epoch, at, end - at, place);
      this.next = null;
    }
    return this.current as Window<T>;
  }

  private following({ epoch, from, to }: Window<T>, place: Place): Window<T> | null {
    const size = 2 * (to - from);
    if (to < place.order(epoch).length) return this.begin(epoch, to, size, place);
    return place.order(epoch + 1).length > 0 ? this.begin(epoch + 1, 0, size, place) : null;
  }

  private begin(epoch: number, from: number, size: number, { order }: Place): Window<T> {
    const fitting = Math.max(1, Math.floor(this.mostBytes / Math.max(1, this.sampleBytes)));
    const indices = order(epoch).slice(from, from + Math.min(size, this.most, fitting));
    const samples = this.reader.read(indices);
    const window = { epoch, from, to: from + indices.length, samples };
    // One that failed is read again when it is asked for again; nobody may be waiting for it yet.
    samples.catch(() => {
      if (this.current === window) this.current = null;
      if (this.next === window) this.next = null;
    });
    return window;
  }
}
