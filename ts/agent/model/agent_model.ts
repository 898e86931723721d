// The policy as one agent sees it: token ids in, token ids out, every call on record.
import { createHash } from 'node:crypto';
import { type PromptImage, sameImages } from '../../batch/prompt_image';
import { TroupeError } from '../../errors';
import type { RolloutEngine, RolloutHandle } from '../../rollout/engine';
import type { FinishReason, RolloutRequest, SamplingParams, TokenSpan } from '../../rollout/request';
import { ApiError } from '../../serve/call/api_error';
import type { CallRecord } from '../../serve/call/model_call';
import { type ModelCall, modelCall } from '../trajectory/model_call';

/** What agents need of a tokenizer. */
export interface AgentTokenizer {
  encode(text: string, addSpecialTokens?: boolean): Int32Array;
  decode(tokens: ArrayLike<number>, options: { skipSpecialTokens: boolean }): string;
}

export interface AgentModelOptions {
  engine: RolloutEngine;
  tokenizer: AgentTokenizer;
  /** Of every call, unless the call says otherwise where it may. maxNewTokens: the most of one call. */
  sampling: SamplingParams;
  /** All randomness of the trajectory. */
  seed: number | string;
  /** Ends calls that are on their way. */
  signal?: AbortSignal;
  /** Ties the calls of a trajectory together, for caches. */
  session?: string;
  /** Of all calls, where {@link behindFirst}: 0. */
  priority?: number;
  /** Of the task, with the token that stands for them; left out: the model reads text alone. */
  images?: { token: number; ofTask: readonly PromptImage[] };
  /** Whether the engine takes first what has had the fewest calls: trajectories that slow tools hold up catch up with the others. */
  behindFirst?: boolean;
}

/** What one call may ask for. How tokens are drawn is the run's matter: log-probs are at its temperature. */
export interface CallOptions {
  maxNewTokens?: number;
  /** Texts that end the response when it contains them. */
  stop?: readonly string[];
  /** In the order of their tokens. Default: those of the task, where the ids have tokens for images. */
  images?: readonly PromptImage[];
  onTokens?: (span: TokenSpan) => void;
}

export class Generated {
  constructor(
    private readonly call: ModelCall,
    private readonly tokenizer: AgentTokenizer,
    readonly stopText: string | undefined,
  ) {}

  get tokens(): Int32Array {
    return this.call.tokens;
  }
  get finishReason(): FinishReason {
    return this.call.finishReason;
  }
  get seconds(): number {
    return this.call.seconds;
  }
  /** Of the call in its trajectory. */
  get record(): ModelCall {
    return this.call;
  }

  /** Without special tokens. */
  get text(): string {
    return this.tokenizer.decode(this.tokens, { skipSpecialTokens: true });
  }

  /** The fewest tokens whose text begins with `text`. Decoding more of them only ever adds to it. */
  tokensOf(text: string): number {
    let [low, high] = [0, this.tokens.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const decoded = this.tokenizer.decode(this.tokens.subarray(0, middle), { skipSpecialTokens: true });
      if (decoded.startsWith(text)) high = middle;
      else low = middle + 1;
    }
    return high;
  }

  /** The same, ended after `count` tokens by a stop text. */
  ended(count: number, stopText: string): Generated {
    this.keep(count);
    this.call.finishReason = 'stop';
    return new Generated(this.call, this.tokenizer, stopText);
  }

  /** Only the first `count` tokens count: what comes after them is neither context nor trained. */
  keep(count: number): void {
    const { call } = this;
    call.tokens = call.tokens.slice(0, count);
    call.logProbs = call.logProbs.slice(0, count);
    call.versions = call.versions
      .filter(({ start }) => start < count)
      .map(({ version, start, end }) => ({ version, start, end: Math.min(end, count) }));
  }
}

/** A context that leaves no room for a response: the agent's matter, not the run's. */
class ContextFull extends Error {}

/** The engine or its weights failed: no trajectory can go on. */
class EngineFailed extends Error {}

/** What the agent wanted to be told of threw: its own matter. */
class CallerFailed extends Error {}

function told(onTokens: (span: TokenSpan) => void, span: TokenSpan): void {
  try {
    onTokens(span);
  } catch (cause) {
    throw new CallerFailed('onTokens failed', { cause });
  }
}

export class AgentModel {
  readonly calls: ModelCall[] = [];
  private readonly occurrences = new Map<string, number>();
  private engineStops = true;

  constructor(private readonly options: AgentModelOptions) {}

  get tokenizer(): AgentTokenizer {
    return this.options.tokenizer;
  }
  /** Prompt and response together. */
  get maxTokens(): number {
    return this.options.engine.maxTokens;
  }
  get maxNewTokens(): number {
    return this.options.sampling.maxNewTokens;
  }

  /**
   * Continues the ids. The same ids, as often as before in this trajectory, give the same tokens for the same seed, whatever else runs.
   * @throws ContextFull when the ids leave no room; EngineFailed; the signal's reason when it is aborted
   */
  async generate(promptIds: ArrayLike<number>, options: CallOptions = {}): Promise<Generated> {
    const { engine, signal, tokenizer } = this.options;
    signal?.throwIfAborted();
    const room = this.maxTokens - promptIds.length;
    if (room < 1) {
      throw new ContextFull(
        `the context has ${promptIds.length} tokens, and ${this.maxTokens} are the most with a response`,
      );
    }
    const { sampling } = this.options;
    const limit = Math.min(options.maxNewTokens ?? sampling.maxNewTokens, sampling.maxNewTokens, room);
    // Rounded up, so that requests that are alike but for what they have left can run in one batch.
    const rounded = Math.min(Math.ceil(limit / ROUND) * ROUND, sampling.maxNewTokens, room);
    const stop = [...(sampling.stop ?? []), ...(options.stop ?? [])];
    const images = options.images ?? this.imagesOf(promptIds);
    const started = performance.now();
    const result = await this.guarded(async () => {
      const drawn = this.sampling(promptIds, rounded);
      const request = {
        promptIds,
        sampling: drawn,
        ...this.request,
        ...(images.length > 0 ? { images } : {}),
      };
      const handle = this.submit(engine, request, stop);
      const abort = (): void => handle.abort();
      signal?.addEventListener('abort', abort, { once: true });
      try {
        if (options.onTokens) for await (const span of handle) told(options.onTokens, span);
        return await handle.result;
      } finally {
        signal?.removeEventListener('abort', abort);
        // Of a caller that failed nobody waits for the rest.
        handle.abort();
      }
    });
    signal?.throwIfAborted();
    const call = modelCall(promptIds, result, (performance.now() - started) / 1000, images);
    this.calls.push(call);
    const generated = new Generated(call, tokenizer, result.stopText);
    if (call.tokens.length > limit) {
      generated.keep(limit);
      call.finishReason = 'length';
    }
    const end = result.stopText === undefined && stop.length > 0 ? stopAt(generated, stop) : null;
    return end ?? generated;
  }

  /** How a call is sampled: as the run says, with a seed from what it continues. */
  sampling(promptIds: ArrayLike<number>, maxNewTokens: number): SamplingParams {
    const { sampling, images } = this.options;
    // In the next turn it would stand for an image.
    const badWords = images === undefined ? {} : { badWords: [...(sampling.badWords ?? []), [images.token]] };
    return {
      ...sampling,
      ...badWords,
      maxNewTokens: Math.min(maxNewTokens, sampling.maxNewTokens),
      seed: this.seedOf(promptIds),
    };
  }

  private imagesOf(promptIds: ArrayLike<number>): readonly PromptImage[] {
    const { images } = this.options;
    return images !== undefined && Array.from(promptIds).includes(images.token) ? images.ofTask : [];
  }

  /** Of every request. */
  get request(): Omit<RolloutRequest, 'promptIds' | 'sampling'> {
    const { session, priority = 0, behindFirst } = this.options;
    return {
      ...(session === undefined ? {} : { session }),
      ...(behindFirst ? { priority: priority - this.calls.length } : {}),
    };
  }

  /** Keeps a call that was made through a dialect of HTTP. */
  record({ promptIds, images, tokens, logProbs, versions, finish }: CallRecord, seconds: number): void {
    const finishReason = finish === 'tool_calls' ? 'stop' : finish;
    // Clients send them again with every turn, and each time they are read: one of each stays.
    const known = [this.options.images?.ofTask ?? [], ...this.calls.map((call) => call.images)];
    const own = known.find((some) => sameImages(some, images)) ?? images;
    this.calls.push(
      modelCall(promptIds, { tokens, logProbs, versions, finishReason, cachedTokens: 0 }, seconds, own),
    );
  }

  /** @throws EngineFailed for what the engine fails in, what it refuses as it is, ContextFull for what can be put right by a shorter context */
  async guarded<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (cause) {
      this.options.signal?.throwIfAborted();
      if (cause instanceof CallerFailed) throw cause.cause;
      if (cause instanceof ApiError && cause.code === 'context_length_exceeded')
        throw new ContextFull(cause.message);
      if (cause instanceof ApiError && cause.status < 500) throw cause;
      // What it refuses to begin is in what was asked.
      if (cause instanceof TroupeError && REFUSED.includes(cause.code)) throw cause;
      throw new EngineFailed(cause instanceof Error ? cause.message : String(cause), { cause });
    }
  }

  /** Engines without a tokenizer know no stop texts: they are looked for afterwards. */
  private submit(engine: RolloutEngine, request: RolloutRequest, stop: readonly string[]): RolloutHandle {
    if (stop.length === 0 || !this.engineStops) return engine.submit(request);
    try {
      return engine.submit({ ...request, sampling: { ...request.sampling, stop } });
    } catch (error) {
      if (!(error instanceof TroupeError) || error.code !== 'INVALID_ARGUMENT') throw error;
      // Where it is something else that it refuses, it does so without stop texts, too.
      const handle = engine.submit(request);
      this.engineStops = false;
      return handle;
    }
  }

  private seedOf(promptIds: ArrayLike<number>): bigint {
    const digest = createHash('sha256').update(Int32Array.from(promptIds)).digest('hex');
    const occurrence = this.occurrences.get(digest) ?? 0;
    this.occurrences.set(digest, occurrence + 1);
    return createHash('sha256')
      .update(`${this.options.seed}:${digest}:${occurrence}`)
      .digest()
      .readBigUInt64LE(0);
  }
}

const ROUND = 64;
const REFUSED: readonly string[] = ['INVALID_ARGUMENT', 'INVALID_DATA'];

/** Cuts after the token that completes the first of the texts; null: none of them is there. */
function stopAt(generated: Generated, stop: readonly string[]): Generated | null {
  const { text } = generated;
  const found = stop
    .map((one) => ({ one, end: text.indexOf(one) + one.length }))
    .filter(({ one, end }) => end >= one.length);
  if (found.length === 0) return null;
  const first = found.reduce((a, b) => (b.end < a.end ? b : a));
  const count = generated.tokensOf(text.slice(0, first.end));
  return generated.ended(count, first.one);
}

/** What ended a trajectory because of the run and not of its agent. */
export const concernsRun = (error: unknown): boolean =>
  error instanceof EngineFailed || (error instanceof TroupeError && error.code === 'INVALID_CONFIG');
