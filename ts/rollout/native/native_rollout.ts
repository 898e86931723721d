// Our own engine in the worker processes of a role: requests that wait are gathered into calls of their generate verb.
import { randomBytes } from 'node:crypto';
import { badOption } from '../../base/check_options';
import { Batch } from '../../batch/batch';
import { splitCollect } from '../../controller/dispatch';
import type { RoleEngine } from '../../engine/role_engine';
import { contiguousByRank } from '../../engine/shards';
import { TroupeError } from '../../errors';
import type { NativeGenerateResult, NativePromptBatch, NativeSamplingOptions } from '../../native/bridge';
import { type CompleteSampling, checkRequest } from '../check_request';
import type { PauseMode, RolloutEngine, RolloutHandle, RolloutStats, WeightSource } from '../engine';
import type { FinishReason, RolloutRequest, RolloutResult, TokenSpan } from '../request';

const PER_RANK = 256;

interface Waiting {
  promptIds: Int32Array;
  native: NativeSamplingOptions;
  /** Equal for requests that may run in one call. */
  key: string;
  seed: bigint;
  priority: number;
  finish(result: RolloutResult): void;
  fail(error: unknown): void;
  readonly ended: boolean;
}

/** First come, first served, higher priorities before. */
export class NativeRollout implements RolloutEngine {
  private waiting: Waiting[] = [];
  private busy: Promise<void> | null = null;
  private running = 0;
  private paused = false;
  private scheduled = false;
  private closed = false;
  private current = 0;
  private promptTokens = 0;
  private generatedTokens = 0;

  constructor(private readonly engine: RoleEngine) {}

  get version(): number {
    return this.current;
  }

  get maxTokens(): number {
    return this.engine.model.config.maxPositions;
  }

  get maxConcurrency(): number {
    return PER_RANK * this.engine.group.worldSize;
  }

  submit(request: RolloutRequest): RolloutHandle {
    this.engine.checkOpen();
    if (this.closed) throw new TroupeError('CLOSED', '[rollout] the engine is closed');
    const { config, eosTokenIds } = this.engine.model;
    const sampling = checkRequest(request, {
      vocabSize: config.vocabSize,
      maxTokens: this.maxTokens,
      eosTokenIds,
    });
    const native = nativeSampling(sampling);
    const handle = new Handle();
    this.waiting.push({
      promptIds: Int32Array.from(request.promptIds),
      native,
      key: JSON.stringify(native),
      seed: sampling.seed ?? randomBytes(8).readBigUInt64LE(0),
      priority: request.priority ?? 0,
      finish: (result) => handle.finish(result),
      fail: (error) => handle.fail(error),
      get ended() {
        return handle.ended;
      },
    });
    if (request.deadlineMs !== undefined) {
      const timer = setTimeout(() => handle.abort(), request.deadlineMs);
      void handle.result.catch(() => undefined).finally(() => clearTimeout(timer));
    }
    // All that a caller submits in one go runs together.
    if (!this.scheduled) {
      this.scheduled = true;
      setImmediate(() => {
        this.scheduled = false;
        this.start();
      });
    }
    return handle;
  }

  async pause(mode: PauseMode): Promise<void> {
    if (mode === 'wait') while (this.busy !== null) await this.busy;
    this.paused = true;
    if (mode === 'abort') {
      for (const request of this.waiting) request.finish(nothing('abort', this.current));
      this.waiting = [];
    }
    await this.busy;
  }

  async resume(): Promise<void> {
    this.paused = false;
    this.start();
  }

  async updateWeights(source: WeightSource, version: number): Promise<void> {
    if (source.kind !== 'in-place')
      throw badOption(
        'rollout',
        `updateWeights: this engine generates from the weights that are trained, not from a ${source.kind}`,
      );
    // A call that is running ends with the weights that it began with: it and this are one after the other in the workers.
    await this.busy;
    this.current = version;
  }

  async stats(): Promise<RolloutStats> {
    return {
      running: this.running,
      waiting: this.waiting.length,
      cachePositions: 0,
      cachePositionsUsed: 0,
      promptTokens: this.promptTokens,
      cachedPromptTokens: 0,
      generatedTokens: this.generatedTokens,
      preemptions: 0,
      version: this.current,
    };
  }

  async close(): Promise<void> {
    this.closed = true;
    await this.pause('abort');
  }

  private start(): void {
    if (this.busy !== null || this.paused) return;
    this.waiting = this.waiting.filter(({ ended }) => !ended);
    if (this.waiting.length === 0) return;
    this.busy = this.serve().finally(() => {
      this.busy = null;
      this.start();
    });
  }

  /** One call, for the first of those that wait and all that are asked like it. */
  private async serve(): Promise<void> {
    this.waiting.sort((a, b) => b.priority - a.priority);
    const { key, native } = this.waiting[0] as Waiting;
    const batch = this.waiting.filter((request) => request.key === key);
    this.waiting = this.waiting.filter((request) => request.key !== key);
    this.running = batch.length;
    try {
      const { group, name } = this.engine;
      const n = samplesPerPrompt(batch);
      const prompts = Batch.fromSequences(
        batch.filter((_, i) => i % n === 0).map(({ promptIds }) => promptIds),
        Array.from({ length: batch.length / n }, () => []),
      );
      let at = 0;
      const shards = contiguousByRank(prompts, group.worldSize).map(
        (shard): [NativePromptBatch, NativeSamplingOptions] => {
          const seeds = BigUint64Array.from(batch.slice(at, at + shard.size * n), ({ seed }) => seed);
          at += shard.size * n;
          return [{ tokens: shard.get('tokens'), offsets: shard.seqOffsets, n, seeds }, native];
        },
      );
      const results = await splitCollect(group, name, 'generate', shards, (parts) =>
        parts.flatMap(samplesOf),
      );
      for (const [i, request] of batch.entries()) {
        const { tokens, logProbs } = results[i] as Sample;
        this.promptTokens += request.promptIds.length;
        this.generatedTokens += tokens.length;
        request.finish({
          tokens,
          logProbs,
          finishReason: native.stopTokenIds.includes(tokens.at(-1) ?? -1) ? 'stop' : 'length',
          versions: [{ version: this.current, start: 0, end: tokens.length }],
          cachedTokens: 0,
        });
      }
    } catch (error) {
      for (const request of batch) request.fail(error);
    } finally {
      this.running = 0;
    }
  }
}

/** What the generate verb can do. */
function nativeSampling(s: CompleteSampling): NativeSamplingOptions {
  const plain =
    s.minP === 0 &&
    s.repetitionPenalty === 1 &&
    s.presencePenalty === 0 &&
    s.frequencyPenalty === 0 &&
    s.stop.length === 0 &&
    s.badWords.length === 0 &&
    s.logitBias.size === 0 &&
    s.constraint === undefined &&
    s.topLogProbs === 0 &&
    !s.promptLogProbs;
  if (!plain) {
    throw badOption(
      'rollout',
      'this engine has maxNewTokens, temperature, topK, topP, stopTokenIds and seed: leave the other options out',
    );
  }
  return {
    maxNewTokens: s.maxNewTokens,
    temperature: s.temperature,
    topK: s.topK,
    topP: s.topP,
    stopTokenIds: [...s.stopTokenIds],
  };
}

/** The n of a batch whose prompts come n times in a row each, which then is computed once for all of them. */
function samplesPerPrompt(batch: readonly Waiting[]): number {
  const same = (a: Int32Array, b: Int32Array): boolean =>
    a.length === b.length && a.every((token, i) => token === b[i]);
  const first = (batch[0] as Waiting).promptIds;
  let n = 1;
  while (n < batch.length && same(first, (batch[n] as Waiting).promptIds)) n++;
  if (batch.length % n !== 0) return 1;
  const regular = batch.every(
    (request, i) => i % n === 0 || same((batch[i - 1] as Waiting).promptIds, request.promptIds),
  );
  return regular ? n : 1;
}

interface Sample {
  tokens: Int32Array;
  logProbs: Float32Array;
}

const samplesOf = ({ tokens, logProbs, offsets }: NativeGenerateResult): Sample[] =>
  Array.from({ length: offsets.length - 1 }, (_, i) => ({
    tokens: tokens.subarray(offsets[i], offsets[i + 1]),
    logProbs: logProbs.subarray(offsets[i], offsets[i + 1]),
  }));

const nothing = (finishReason: FinishReason, version: number): RolloutResult => ({
  tokens: new Int32Array(0),
  logProbs: new Float32Array(0),
  finishReason,
  versions: [{ version, start: 0, end: 0 }],
  cachedTokens: 0,
});

/** All of a response at once, as its only span. */
class Handle implements RolloutHandle {
  readonly result: Promise<RolloutResult>;
  ended = false;
  private resolve!: (result: RolloutResult) => void;
  private reject!: (error: unknown) => void;

  constructor() {
    this.result = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    this.result.catch(() => undefined);
  }

  finish(result: RolloutResult): void {
    this.ended = true;
    this.resolve(result);
  }

  fail(error: unknown): void {
    this.ended = true;
    this.reject(error);
  }

  abort(): void {
    if (!this.ended) this.finish(nothing('abort', 0));
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<TokenSpan> {
    const { tokens, logProbs, versions } = await this.result;
    if (tokens.length > 0) yield { tokens, logProbs, version: versions[0]?.version ?? 0 };
  }
}
