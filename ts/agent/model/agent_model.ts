// The policy as one agent sees it: token ids in, token ids out, every call on record.
import { createHash } from 'node:crypto';
import { TroupeError } from '../../errors';
import type { RolloutEngine } from '../../rollout/engine';
import type { FinishReason, SamplingParams, TokenSpan } from '../../rollout/request';
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
  /** Prompt and response together, in tokens; never more than the engine's. */
  maxTokens?: number;
  /** Ends calls that are on their way. */
  signal?: AbortSignal;
  /** Ties the calls of a trajectory together, for caches. */
  session?: string;
}

/** What one call may ask for. How tokens are drawn is the run's matter: log-probs are at its temperature. */
export interface CallOptions {
  maxNewTokens?: number;
  /** Texts that end the response when it contains them. */
  stop?: readonly string[];
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
export class ContextFull extends Error {}

/** The engine or its weights failed: no trajectory can go on. */
export class EngineFailed extends Error {}

export class AgentModel {
  readonly calls: ModelCall[] = [];
  private readonly occurrences = new Map<string, number>();

  constructor(private readonly options: AgentModelOptions) {}

  get tokenizer(): AgentTokenizer {
    return this.options.tokenizer;
  }
  /** Prompt and response together. */
  get maxTokens(): number {
    return Math.min(this.options.maxTokens ?? Number.POSITIVE_INFINITY, this.options.engine.maxTokens);
  }
  get maxNewTokens(): number {
    return this.options.sampling.maxNewTokens;
  }

  /**
   * Continues the ids. The same ids, as often as before in this trajectory, give the same tokens for the same seed, whatever else runs.
   * @throws ContextFull when the ids leave no room; EngineFailed; the signal's reason when it is aborted
   */
  async generate(promptIds: ArrayLike<number>, options: CallOptions = {}): Promise<Generated> {
    const { engine, sampling, signal, tokenizer, session } = this.options;
    signal?.throwIfAborted();
    const room = this.maxTokens - promptIds.length;
    if (room < 1) {
      throw new ContextFull(
        `the context has ${promptIds.length} tokens, and ${this.maxTokens} are the most with a response`,
      );
    }
    const maxNewTokens = Math.min(options.maxNewTokens ?? sampling.maxNewTokens, sampling.maxNewTokens, room);
    const stop = [...(sampling.stop ?? []), ...(options.stop ?? [])];
    const started = performance.now();
    let result: Awaited<ReturnType<RolloutEngine['submit']>['result']>;
    try {
      const handle = engine.submit({
        promptIds,
        sampling: {
          ...sampling,
          maxNewTokens,
          ...(stop.length > 0 ? { stop } : {}),
          seed: this.seedOf(promptIds),
        },
        ...(session === undefined ? {} : { session }),
      });
      const abort = (): void => handle.abort();
      signal?.addEventListener('abort', abort, { once: true });
      try {
        if (options.onTokens) for await (const span of handle) options.onTokens(span);
        result = await handle.result;
      } finally {
        signal?.removeEventListener('abort', abort);
      }
    } catch (cause) {
      throw new EngineFailed(cause instanceof Error ? cause.message : String(cause), { cause });
    }
    signal?.throwIfAborted();
    const call = modelCall(promptIds, result, (performance.now() - started) / 1000);
    this.calls.push(call);
    return new Generated(call, tokenizer, result.stopText);
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

/** What ended a trajectory because of the run and not of its agent. */
export const concernsRun = (error: unknown): boolean =>
  error instanceof EngineFailed || (error instanceof TroupeError && error.code === 'INVALID_CONFIG');
