// The columns of a batch that is being sampled: every response has its place before it is there.
import { Batch } from '../batch/batch';
import { ColumnMemory } from '../batch/column_memory';
import { offsetsOf } from '../batch/layout';
import type { PromptImage } from '../batch/prompt_image';

/** n sequences per prompt, with their prompts in them, and room for their responses. */
export class SampledColumns {
  readonly size: number;
  /** [ΣL] */
  readonly tokens: Int32Array;
  /** [ΣR] */
  readonly rolloutLogProbs: Float32Array;
  /** [size] of the prompts. */
  private readonly images: (readonly PromptImage[])[] | null;
  private readonly promptLens: Int32Array;
  private readonly seqOffsets: Int32Array;
  private readonly responseOffsets: Int32Array;

  /** `prompts`: a batch without responses. `responseLens` [prompts.size * n]. Every response is to be written. */
  constructor(
    prompts: Batch,
    n: number,
    private readonly responseLens: Int32Array,
    private readonly memory = new ColumnMemory(),
  ) {
    this.size = prompts.size * n;
    this.promptLens = new Int32Array(this.size).map(
      (_, j) => prompts.promptLens[Math.floor(j / n)] as number,
    );
    this.seqOffsets = offsetsOf(this.promptLens.map((length, j) => length + (responseLens[j] as number)));
    this.responseOffsets = offsetsOf(responseLens);
    this.tokens = memory.int32(this.seqOffsets[this.size] as number);
    this.rolloutLogProbs = memory.float32(this.responseOffsets[this.size] as number);
    const ids = prompts.get('tokens');
    this.images = prompts.has('images')
      ? Array.from({ length: this.size }, (_, j) => prompts.get('images')[Math.floor(j / n)] ?? [])
      : null;
    for (let j = 0; j < this.size; j++) {
      const i = Math.floor(j / n);
      this.tokens.set(ids.subarray(prompts.seqOffsets[i], prompts.seqOffsets[i + 1]), this.seqOffsets[j]);
    }
  }

  /** Where the tokens of response j lie. */
  response(j: number): Int32Array {
    const start = (this.seqOffsets[j] as number) + (this.promptLens[j] as number);
    return this.tokens.subarray(start, this.seqOffsets[j + 1]);
  }

  /** Where the log-probabilities of the responses first <= j < end lie. */
  logProbs(first: number, end: number): Float32Array {
    return this.ofResponses(this.rolloutLogProbs, first, end);
  }

  /** Where these responses lie in a column [ΣR]. */
  ofResponses<A extends Int32Array | Float32Array>(column: A, first: number, end: number): A {
    return column.subarray(this.responseOffsets[first], this.responseOffsets[end]) as A;
  }

  /** With rolloutLogProbs, a response mask of ones, and routedExperts [size] unless that is null. */
  batch(routedExperts: Uint8Array[] | null): Batch {
    const { tokens, promptLens, responseLens, rolloutLogProbs } = this;
    const responseMask = this.memory.uint8(rolloutLogProbs.length).fill(1);
    const columns = {
      responseMask,
      rolloutLogProbs,
      ...(routedExperts === null ? {} : { routedExperts }),
      ...(this.images === null ? {} : { images: this.images }),
    };
    return Batch.fromRagged({ tokens, promptLens, responseLens, columns }, { adopt: true });
  }
}
