// A batch of requests in the native engine, from submission to its columns. Its responses stay in the workers until all lengths are known.
import type { Batch } from '../../batch/batch';
import type { ColumnMemory } from '../../batch/column_memory';
import type { PromptImage } from '../../batch/prompt_image';
import { runsOf } from '../../engine/batch_part';
import { imagesOf } from '../../engine/image_batch';
import type { NativeRequestSampling } from '../../native/bridge';
import type { BatchSubmission, EndedRequests, TakenResponses } from '../../worker/kept_responses';
import { gathered, land } from '../../worker/message_arrays';
import type { BatchRequest } from '../engine';
import { SampledColumns } from '../sampled_columns';
import type { Placement } from './placement';

/** What a batch asks of the ranks that serve it. */
export interface BatchCalls {
  /** Ends requests with what they have. */
  abort(rank: number, ids: number[]): void;
  /** The responses of a share; `receive` says where each array of them lands. */
  take(share: BatchShare, receive: (taken: TakenResponses) => void): Promise<void>;
  /** Nobody wants those of a share. */
  drop(share: BatchShare): void;
}

/** The requests of one rank. */
export class BatchShare {
  /** Samples of the batch, ascending. */
  readonly samples: number[] = [];
  left = 0;
  firstId = 0;
  private readonly prompts: { tokens: Int32Array; images: readonly PromptImage[]; samples: number }[] = [];
  private open: Uint8Array = new Uint8Array(0);

  constructor(
    readonly rank: number,
    private readonly batch: LiveBatch,
  ) {}

  add(sample: number, prompt: Int32Array, images: readonly PromptImage[]): void {
    const last = this.prompts.at(-1);
    if (last?.tokens === prompt) last.samples++;
    else this.prompts.push({ tokens: prompt, images, samples: 1 });
    this.samples.push(sample);
  }

  /** As the worker takes it, with the ids from `firstId` on. */
  submission(firstId: number): BatchSubmission {
    this.firstId = firstId;
    this.left = this.samples.length;
    this.open = new Uint8Array(this.left).fill(1);
    const { sampling, request } = this.batch;
    return {
      firstId,
      prompts: gathered(
        this.prompts.map(({ tokens }) => tokens),
        new Int32Array(0),
      ),
      promptLens: Int32Array.from(this.prompts, ({ tokens }) => tokens.length),
      images: imagesOf(this.prompts.map(({ images }) => images)),
      samples: Int32Array.from(this.prompts, ({ samples }) => samples),
      seeds: BigUint64Array.from(this.samples, (j) => request.seeds[j] as bigint),
      sampling,
      priority: request.priority ?? 0,
      keeps: true,
      versions: request.versions ?? false,
      maxTokens: request.maxTokens ?? Number.POSITIVE_INFINITY,
    };
  }

  /** Of the requests that have not ended. */
  openIds(): number[] {
    return this.samples.flatMap((_, place) => (this.open[place] === 0 ? [] : [this.firstId + place]));
  }

  has(id: number): boolean {
    return id >= this.firstId && id < this.firstId + this.samples.length;
  }

  /** The number of requests that have ended with it. */
  take({ places, lengths, expertBytes }: EndedRequests): number {
    for (const [i, place] of places.entries())
      this.batch.ended(this.samples[place] as number, lengths[i] as number, expertBytes[i] as number);
    return this.end(places);
  }

  /** One request has failed, and the batch with it. */
  failed(id: number, error: unknown): number {
    return this.end([id - this.firstId], { error });
  }

  /** All of them have failed; the number of those that had not ended. */
  lost(error: unknown): number {
    return this.end(Array.from(this.samples.keys()), { error });
  }

  private end(places: readonly number[], failure: { error: unknown } | null = null): number {
    let count = 0;
    for (const place of places) {
      count += this.open[place] as number;
      this.open[place] = 0;
    }
    this.left -= count;
    if (failure !== null) this.batch.fail(failure.error);
    if (count > 0 && this.left === 0) this.batch.shareEnded();
    return count;
  }
}

export class LiveBatch {
  readonly result: Promise<Batch>;
  /** Empty until it has been placed. */
  shares: BatchShare[] = [];
  /** Requests. */
  readonly size: number;
  private readonly lengths: Int32Array;
  private readonly expertBytes: Int32Array;
  private openShares = 0;
  private failure: { error: unknown } | null = null;
  private resolve!: (batch: Batch | Promise<Batch>) => void;
  private reject!: (error: unknown) => void;

  constructor(
    readonly request: BatchRequest,
    readonly sampling: NativeRequestSampling,
    private readonly calls: BatchCalls,
    private readonly memory: ColumnMemory,
  ) {
    this.size = request.prompts.size * request.n;
    this.lengths = new Int32Array(this.size);
    this.expertBytes = new Int32Array(this.size);
    this.result = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  /** Gives each request to a rank. */
  place(placement: Placement): BatchShare[] {
    const { prompts, n } = this.request;
    const tokens = prompts.get('tokens');
    const images = prompts.has('images') ? prompts.get('images') : null;
    const byRank = new Map<number, BatchShare>();
    for (let i = 0; i < prompts.size; i++) {
      const promptIds = tokens.subarray(prompts.seqOffsets[i], prompts.seqOffsets[i + 1]);
      for (let k = 0; k < n; k++) {
        const rank = placement.place({ promptIds, request: {} });
        const share = byRank.get(rank) ?? new BatchShare(rank, this);
        byRank.set(rank, share);
        share.add(i * n + k, promptIds, images?.[i] ?? []);
      }
    }
    this.shares = [...byRank.values()];
    this.openShares = this.shares.length;
    return this.shares;
  }

  /** Ends with what there is. */
  abort(): void {
    if (this.shares.length === 0) this.resolve(this.columns());
    else for (const share of this.shares) this.calls.abort(share.rank, share.openIds());
  }

  ended(sample: number, length: number, expertBytes: number): void {
    this.lengths[sample] = length;
    this.expertBytes[sample] = expertBytes;
  }

  /** The first error is that of the batch; nothing more is asked of the ranks. */
  fail(error: unknown): void {
    if (this.failure !== null) return;
    this.failure = { error };
    this.abort();
  }

  shareEnded(): void {
    this.openShares--;
    // An error, too, is told when all have ended: nothing of the batch runs any more.
    if (this.openShares > 0) return;
    if (this.failure === null) {
      this.resolve(this.columns());
      return;
    }
    for (const share of this.shares) this.calls.drop(share);
    this.reject(this.failure.error);
  }

  private async columns(): Promise<Batch> {
    const { prompts, n } = this.request;
    const columns = new SampledColumns(prompts, n, this.lengths, this.memory);
    const version = this.request.versions ? this.memory.int32(columns.rolloutLogProbs.length) : null;
    const experts = this.expertPlaces();
    await Promise.all(
      this.shares.map((share) =>
        this.calls.take(share, ({ tokens, logProbs, versions, routedExperts }) => {
          const { samples } = share;
          land(
            tokens,
            samples.map((j) => columns.response(j)),
          );
          const runs = runsOf(samples);
          land(
            logProbs,
            runs.map(([first, end]) => columns.logProbs(first, end)),
          );
          if (version !== null)
            land(
              versions,
              runs.map(([first, end]) => columns.ofResponses(version, first, end)),
            );
          if (experts !== null)
            land(
              routedExperts,
              samples.map((j) => (experts[j] as Uint8Array).subarray(0, this.expertBytes[j])),
            );
        }),
      ),
    );
    const batch = columns.batch(experts);
    if (version === null) return batch;
    return batch.with({ version }, { granularity: { version: 'response' }, adopt: true });
  }

  /** An array for each sequence, with zeros for its last token, which goes nowhere; null where some request has none. */
  private expertPlaces(): Uint8Array[] | null {
    if (this.expertBytes.includes(0)) return null;
    const { prompts, n } = this.request;
    return Array.from(this.lengths, (length, j) => {
      const bytes = this.expertBytes[j] as number;
      return new Uint8Array(bytes + bytes / ((prompts.promptLens[Math.floor(j / n)] as number) + length - 1));
    });
  }
}
