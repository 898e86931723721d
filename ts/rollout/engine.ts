// The one interface through which everything gets responses: the trainer's batches, validation, agents, servers.
import type { Batch } from '../batch/batch';
import type { WeightBucket } from '../weights/weight_bucket';
import type { RolloutRequest, RolloutResult, SamplingParams, TokenSpan } from './request';

/** A running request: the spans as they come (once), the whole at the end. */
export interface RolloutHandle extends AsyncIterable<TokenSpan> {
  /** Rejects with a TroupeError when the request cannot be served; an abort is a result. */
  readonly result: Promise<RolloutResult>;
  /** Ends it with what it has; nothing happens when it has ended. */
  abort(): void;
}

/**
 * What becomes of requests in flight when the engine pauses. keep: they stand still, and go on after; preempt: so do they, and what they
 * have in the cache is given back where it is in the way of training, and computed again after; abort: they end with what they have; wait:
 * they run to their end first, and nothing new is admitted.
 */
export type PauseMode = 'keep' | 'preempt' | 'abort' | 'wait';

/** Where new weights come from. */
export type WeightSource =
  /** The engine generates from the weights that are trained: they are there already. */
  | { kind: 'in-place' }
  /** A Hugging Face model directory that the engine can read. */
  | { kind: 'directory'; path: string }
  /** A stream of all tensors, such as the exportWeights of an actor gives; of our own engine with adapters all of these alone. */
  | { kind: 'buckets'; buckets: AsyncIterable<WeightBucket> };

export interface RolloutStats {
  running: number;
  waiting: number;
  /** Of keys and values, in positions. */
  cachePositions: number;
  cachePositionsUsed: number;
  /** Since the engine was made. */
  promptTokens: number;
  cachedPromptTokens: number;
  generatedTokens: number;
  /** Steps of a request that checked a draft, the tokens of these drafts, and those of them that were then sampled (speculative decoding). */
  drafts: number;
  draftedTokens: number;
  acceptedTokens: number;
  /** Of the generated ones, those whose logits came from a GPU to the host: there were more candidates than it keeps (docs/cuda.md). */
  hostChoices: number;
  preemptions: number;
  version: number;
}

/** n samples of each of some prompts, sample k of prompt i with seed i * n + k. */
export interface BatchRequest {
  /** Without responses. */
  prompts: Batch;
  n: number;
  /** Of all; texts and constraints are for single requests. */
  sampling: Omit<SamplingParams, 'seed' | 'stop' | 'constraint' | 'topLogProbs' | 'promptLogProbs'>;
  seeds: BigUint64Array;
  /** Prompt and response together: a response that reaches it ends, as at `maxNewTokens`. Default: Infinity. */
  maxTokens?: number;
  /** Of all of them: higher ones are admitted first, 0. */
  priority?: number;
  /** Also a column `version` [ΣR]: of the weights that made each token. */
  versions?: boolean;
}

export interface RolloutEngine {
  /** The version of the weights that requests are served with now. */
  readonly version: number;
  /** Prompt and response together, in tokens; less once it is known that the engine has room for less. */
  readonly maxTokens: number;
  /** Requests that run at the same time; more wait. */
  readonly maxConcurrency: number;
  /**
   * Refuses what can never be served, with numbers (INVALID_ARGUMENT), at once. What is served is the request as it is now: its objects may be
   * changed for the next one, but for the memory of typed arrays.
   */
  submit(request: RolloutRequest): RolloutHandle;
  /**
   * The responses that `submit` would give for each of these requests, as the columns of a batch (SampledColumns.batch), for which the engine has a faster
   * way than one by one. When one fails the others are given up.
   */
  submitBatch?(request: BatchRequest): Promise<Batch>;
  pause(mode: PauseMode): Promise<void>;
  resume(): Promise<void>;
  /**
   * Requests in flight go on with the new weights; their spans say which version made them. Of weights that are trained in place an engine
   * learns here: tokens made between the training and this call carry the number of before, unless `pause('keep')` comes before the one and
   * `resume` after the other.
   */
  updateWeights(source: WeightSource, version: number): Promise<void>;
  /** Rejects when the engine can serve nothing any more. */
  stats(): Promise<RolloutStats>;
  close(): Promise<void>;
}
