// A rollout engine whose responses are given, for loops that are tested without a model.
import type { RolloutEngine, RolloutHandle, RolloutStats } from '../../ts/rollout/engine';
import type { RolloutRequest, RolloutResult, TokenSpan } from '../../ts/rollout/request';

export interface Scripted {
  tokens: ArrayLike<number>;
  stopText?: string;
  finishReason?: RolloutResult['finishReason'];
  /** Milliseconds. */
  delay?: number;
}

export class ScriptedEngine implements RolloutEngine {
  version = 3;
  readonly maxTokens: number = 100_000;
  readonly maxConcurrency: number = 64;
  readonly requests: RolloutRequest[] = [];

  /** `respond` is given the number of the request, from 0. */
  constructor(
    private readonly respond: (request: RolloutRequest, index: number) => Scripted | Promise<Scripted>,
  ) {}

  submit(request: RolloutRequest): RolloutHandle {
    this.requests.push(request);
    const { version } = this;
    let abort: () => void = () => undefined;
    const aborted = new Promise<Scripted>((resolve) => {
      abort = () => resolve({ tokens: [], finishReason: 'abort' });
    });
    const made = Promise.resolve(this.respond(request, this.requests.length - 1));
    const result = Promise.race([made, aborted]).then(async (scripted): Promise<RolloutResult> => {
      if (scripted.delay) await new Promise((resolve) => setTimeout(resolve, scripted.delay));
      const tokens = Int32Array.from(scripted.tokens).slice(0, request.sampling.maxNewTokens);
      return {
        tokens,
        logProbs: Float32Array.from(tokens, (token) => -1 / (1 + token)),
        finishReason: scripted.finishReason ?? (tokens.length < scripted.tokens.length ? 'length' : 'stop'),
        ...(scripted.stopText === undefined ? {} : { stopText: scripted.stopText }),
        versions: tokens.length > 0 ? [{ version, start: 0, end: tokens.length }] : [],
        cachedTokens: 0,
      };
    });
    return {
      result,
      abort,
      async *[Symbol.asyncIterator](): AsyncGenerator<TokenSpan> {
        const { tokens, logProbs } = await result;
        for (let i = 0; i < tokens.length; i++)
          yield { tokens: tokens.subarray(i, i + 1), logProbs: logProbs.subarray(i, i + 1), version };
      },
    };
  }

  async pause(): Promise<void> {}
  async resume(): Promise<void> {}
  async updateWeights(): Promise<void> {}
  async close(): Promise<void> {}
  async stats(): Promise<RolloutStats> {
    return {
      running: 0,
      waiting: 0,
      cachePositions: 0,
      cachePositionsUsed: 0,
      promptTokens: 0,
      cachedPromptTokens: 0,
      generatedTokens: 0,
      drafts: 0,
      draftedTokens: 0,
      acceptedTokens: 0,
      hostChoices: 0,
      preemptions: 0,
      version: this.version,
    };
  }
}
