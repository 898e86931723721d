// The sequences of a batch that one rank is sent: their columns go out from where they lie in the batch, without a copy.
import type { Batch } from '../batch/batch';
import type { ColumnData } from '../batch/columns';
import { offsetsOf } from '../batch/layout';
import { gathered } from '../worker/message_arrays';

/** Neighbours among ascending indices: [first, end) each. */
export function runsOf(indices: readonly number[]): [number, number][] {
  const runs: [number, number][] = [];
  for (const index of indices) {
    const last = runs.at(-1);
    if (last?.[1] === index) last[1]++;
    else runs.push([index, index + 1]);
  }
  return runs;
}

/** What of a batch a message is made of. */
export type SentBatch = Pick<Batch, 'size' | 'has' | 'get' | 'seqOffsets' | 'promptLens'>;

/** The sequences `indices` of a batch in that order. Columns of tokens are for a message alone: here they are empty (message_arrays.ts). */
export class BatchPart implements SentBatch {
  readonly size: number;
  readonly seqOffsets: Int32Array;
  readonly promptLens: Int32Array;
  private readonly runs: [number, number][];

  constructor(
    private readonly batch: Batch,
    private readonly indices: readonly number[],
  ) {
    this.size = indices.length;
    this.seqOffsets = offsetsOf(indices.map((i) => batch.sequenceLens[i] as number));
    this.promptLens = Int32Array.from(indices, (i) => batch.promptLens[i] as number);
    this.runs = runsOf(indices);
  }

  has(name: string): boolean {
    return this.batch.has(name);
  }

  /** As that of a batch, whose types it has. */
  get(name: string): never {
    return this.column(name) as never;
  }

  private column(name: string): ColumnData {
    const { batch } = this;
    const column = batch.get(name);
    const granularity = batch.granularity(name);
    if (granularity === 'sequence') return this.indices.map((i) => column[i]);
    const offsets = granularity === 'token' ? batch.seqOffsets : batch.responseOffsets;
    const data = column as Float32Array;
    return gathered(
      this.runs.map(([first, end]) => data.subarray(offsets[first], offsets[end])),
      data.slice(0, 0),
      this.lengths(granularity),
    );
  }

  /** Of the sequences' parts of a column. */
  private lengths(granularity: 'token' | 'response'): Int32Array {
    const lens = granularity === 'token' ? this.batch.sequenceLens : this.batch.responseLens;
    return Int32Array.from(this.indices, (i) => lens[i] as number);
  }
}
