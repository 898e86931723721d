// A rollout engine that says what a script says, a few tokens at a time: for what is above engines.
import { setImmediate as turn } from 'node:timers/promises';
import { TroupeError } from '../../ts/errors';
import type { RolloutEngine, RolloutHandle } from '../../ts/rollout/engine';
import type { RolloutRequest, RolloutResult, TokenSpan, TopLogProb } from '../../ts/rollout/request';

export interface PacedEngine extends RolloutEngine {
  /** Everything that was submitted. */
  readonly requests: RolloutRequest[];
  /** Of them, those that were ended from outside before they were complete. */
  aborted: number;
  running: number;
}

export interface Script {
  /** The tokens of a response, which end at maxNewTokens or a stop id. */
  answer(request: RolloutRequest): ArrayLike<number>;
  /** Tokens per span. */
  span?: number;
  stopTokenIds?: readonly number[];
  maxTokens?: number;
  /** The k-th likeliest token where this one was drawn; default: it and those after it. */
  top?(token: number, k: number): number;
  /** Awaited before every span. */
  pace?(): Promise<unknown>;
}

const logProbOf = (token: number, at: number): number => -((token % 7) + at / 128) / 4;

export function pacedEngine(script: Script): PacedEngine {
  const { span = 1, stopTokenIds = [], maxTokens = 4096, pace = () => turn() } = script;
  const topOf = script.top ?? ((token: number, k: number): number => token + k);
  const engine: PacedEngine = {
    requests: [],
    aborted: 0,
    running: 0,
    version: 3,
    maxTokens,
    maxConcurrency: 64,
    submit: (request) => {
      if (request.sampling.maxNewTokens + request.promptIds.length > maxTokens)
        throw new TroupeError('INVALID_ARGUMENT', '[rollout] too long');
      engine.requests.push(request);
      return respond(request);
    },
    pause: async () => undefined,
    resume: async () => undefined,
    updateWeights: async () => undefined,
    stats: async () => ({
      running: engine.running,
      waiting: 0,
      cachePositions: 1024,
      cachePositionsUsed: 16,
      promptTokens: 0,
      cachedPromptTokens: 0,
      generatedTokens: 0,
      drafts: 0,
      draftedTokens: 0,
      acceptedTokens: 0,
      hostChoices: 0,
      preemptions: 0,
      version: engine.version,
    }),
    close: async () => undefined,
  };

  function respond(request: RolloutRequest): RolloutHandle {
    const { maxNewTokens, topLogProbs = 0 } = request.sampling;
    const stops = request.sampling.stopTokenIds ?? stopTokenIds;
    let given = false;
    const spans: TokenSpan[] = [];
    let wake = (): void => undefined;
    let ended = false;
    const work = async (): Promise<RolloutResult> => {
      engine.running++;
      const all: number[] = [];
      let finishReason: RolloutResult['finishReason'] = 'length';
      const answer = script.answer(request);
      for (let at = 0; at < answer.length && !given; at += span) {
        await pace();
        if (given) break;
        const tokens = Array.from(answer).slice(at, at + span);
        const stop = tokens.findIndex((token) => stops.includes(token));
        if (stop >= 0) tokens.length = stop + 1;
        const room = Math.min(tokens.length, maxNewTokens - all.length);
        tokens.length = room;
        spans.push(spanOf(tokens, all.length, topLogProbs, engine.version, topOf));
        all.push(...tokens);
        wake();
        if (stop >= 0 && stop < room) finishReason = 'stop';
        if (stop >= 0 || all.length === maxNewTokens) break;
      }
      if (given) finishReason = 'abort';
      if (finishReason === 'abort') engine.aborted++;
      engine.running--;
      ended = true;
      wake();
      return {
        tokens: Int32Array.from(all),
        logProbs: Float32Array.from(all, logProbOf),
        finishReason,
        versions: [{ version: engine.version, start: 0, end: all.length }],
        cachedTokens: Math.min(4, request.promptIds.length),
      };
    };
    const result = work();
    result.catch(() => {
      ended = true;
      wake();
    });
    return {
      result,
      abort: () => {
        if (!ended) given = true;
      },
      async *[Symbol.asyncIterator]() {
        while (true) {
          const next = spans.shift();
          if (next !== undefined) yield next;
          else if (ended) {
            await result;
            return;
          } else
            await new Promise<void>((resolve) => {
              wake = resolve;
            });
        }
      },
    };
  }
  return engine;
}

function spanOf(
  tokens: number[],
  at: number,
  top: number,
  version: number,
  topOf: (token: number, k: number) => number,
): TokenSpan {
  const logProbs = Float32Array.from(tokens, (token, i) => logProbOf(token, at + i));
  const others = (token: number, i: number): TopLogProb[] =>
    Array.from({ length: top }, (_, k) => ({ token: topOf(token, k), logProb: (logProbs[i] as number) - k }));
  return {
    tokens: Int32Array.from(tokens),
    logProbs,
    ...(top > 0 ? { topLogProbs: tokens.map(others) } : {}),
    version,
  };
}
