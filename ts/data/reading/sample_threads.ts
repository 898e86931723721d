// Reads and tokenizes samples in threads beside the one that runs the training.
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { deserialize } from 'node:v8';
import { ThreadCalls } from '../../base/thread_calls';
import { type ErrorCode, TroupeError } from '../../errors';
import { packageRoot } from '../../install/package_root';
import { type ChosenRows, inFileOrder, type Usable } from '../dataset';
import { ParquetFile } from '../parquet_file';
import { rowsName } from '../row';
import type { DatasetSpec, Outcome, PackedSamples, SampleReply, SampleRequest, ThreadSpec } from './protocol';

/** Each holds a tokenizer, which may be 200 MB. */
const MOST_THREADS = 4;

/** Samples that have been read, in the order in which they were asked for. */
export interface ReadSamples<T> {
  /** null: not to be used. @throws TroupeError why it cannot be read */
  at(place: number): T | null;
  /** Of all of them. */
  readonly bytes: number;
}

type SampleThread = ThreadCalls<SampleRequest, SampleReply>;

/**
 * Every thread has a share of the rows and keeps what it has decoded of that alone; what comes back is one buffer from each, and a
 * sample is made of its bytes when it is taken.
 */
export class SampleThreads<T> {
  private readonly threads: readonly SampleThread[];
  /** First sample of each thread's share, and the number of samples. */
  private readonly shares: readonly number[];

  constructor(
    private readonly spec: DatasetSpec,
    rows: ChosenRows,
    n = Math.min(MOST_THREADS, availableParallelism()),
  ) {
    const file = path.join(packageRoot, 'dist', 'data', 'reading', 'sample_thread.js');
    const data: ThreadSpec = { ...spec, keptBytes: Math.floor(ParquetFile.KEPT_BYTES / n) };
    this.shares = rows.shares(n);
    this.threads = Array.from({ length: n }, () => new ThreadCalls(file, data, 'data'));
  }

  /** @throws TroupeError IO when a thread is no more; what is wrong with a sample shows when it is taken */
  async read(indices: Int32Array): Promise<ReadSamples<T>> {
    const places = inFileOrder(indices);
    /** Places of each thread's samples: a stretch of `places`. */
    const ends = this.shares.slice(1).map((end) => {
      const at = places.findIndex((place) => (indices[place] as number) >= end);
      return at === -1 ? places.length : at;
    });
    const packed = this.threads.map((thread, t) => {
      const own = places.subarray(t === 0 ? 0 : ends[t - 1], ends[t]);
      return this.ask(thread, { kind: 'read', indices: own.map((place) => indices[place] as number) });
    });
    const replies = await Promise.all(packed);
    const bytes = replies.reduce((sum, { samples }) => sum + (samples as PackedSamples).bytes.length, 0);
    const sorted = new Int32Array(places.length);
    for (const [n, place] of places.entries()) sorted[place] = n;
    return {
      bytes,
      at: (place) => {
        const n = sorted[place] as number;
        const t = ends.findIndex((end) => n < end);
        const { samples } = replies[t] as { samples: PackedSamples };
        return unpacked(samples, n - (t === 0 ? 0 : (ends[t - 1] as number))) as T | null;
      },
    };
  }

  /** Of all samples, which must be prompts. */
  async usable(): Promise<Usable> {
    const counts = await Promise.all(
      this.threads.map((thread, t) => {
        const [from, to] = this.shares.slice(t, t + 2) as [number, number];
        return this.ask(thread, { kind: 'count', from, to });
      }),
    );
    const found = counts.map(({ usable }) => usable as Usable);
    return {
      usable: found.reduce((sum, { usable }) => sum + usable, 0),
      shortest: Math.min(...found.map(({ shortest }) => shortest)),
    };
  }

  async close(): Promise<void> {
    await Promise.all(this.threads.map((thread) => thread.end()));
  }

  private async ask(thread: SampleThread, request: Parameters<SampleThread['ask']>[0]): Promise<SampleReply> {
    try {
      return await thread.ask(request);
    } catch (cause) {
      const { message } = cause as Error;
      throw new TroupeError(
        'IO',
        `[data] reading ${this.spec.paths.map(rowsName).join(', ')} failed: ${message}`,
        {
          cause,
        },
      );
    }
  }
}

function unpacked({ bytes, ends }: PackedSamples, n: number): unknown {
  // A copy: arrays of the sample are views of what it is made of, and would hold all of it.
  const own = bytes.slice(n === 0 ? 0 : ends[n - 1], ends[n]);
  const outcome = deserialize(own) as Outcome;
  if ('message' in outcome) throw new TroupeError(outcome.code as ErrorCode, outcome.message);
  return outcome.sample;
}
