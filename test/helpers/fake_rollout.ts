// A rollout engine without a model: what is submitted in one go is answered together, by a function.
import { TroupeError } from '../../ts/errors';
import type { RolloutEngine, RolloutHandle } from '../../ts/rollout/engine';
import type { RolloutRequest, RolloutResult, TokenSpan } from '../../ts/rollout/request';

export type Answer = (requests: readonly RolloutRequest[]) => { tokens: number[]; logProbs: number[] }[];

export function fakeRollout(answer: Answer): RolloutEngine {
  let version = 0;
  let waiting: {
    request: RolloutRequest;
    resolve: (r: RolloutResult) => void;
    reject: (e: unknown) => void;
  }[] = [];
  const serve = (): void => {
    const batch = waiting;
    waiting = [];
    if (batch.length === 0) return;
    try {
      const answers = answer(batch.map(({ request }) => request));
      for (const [i, { resolve }] of batch.entries()) {
        const { tokens, logProbs } = answers[i] as { tokens: number[]; logProbs: number[] };
        resolve({
          tokens: Int32Array.from(tokens),
          logProbs: Float32Array.from(logProbs),
          finishReason: 'length',
          versions: [{ version, start: 0, end: tokens.length }],
          cachedTokens: 0,
        });
      }
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
  };
  return {
    get version() {
      return version;
    },
    maxTokens: 2 ** 24,
    maxConcurrency: 256,
    submit(request): RolloutHandle {
      const bad =
        request.promptIds.length === 0 ? 0 : Array.from(request.promptIds).findIndex((id) => !(id >= 0));
      if (bad >= 0) {
        throw new TroupeError(
          'INVALID_ARGUMENT',
          `[rollout] promptIds: ${request.promptIds[bad] ?? 'nothing'} at position ${bad}`,
        );
      }
      const result = new Promise<RolloutResult>((resolve, reject) => {
        waiting.push({ request, resolve, reject });
      });
      result.catch(() => undefined);
      setImmediate(serve);
      return {
        result,
        abort: () => undefined,
        async *[Symbol.asyncIterator](): AsyncGenerator<TokenSpan> {
          const { tokens, logProbs } = await result;
          yield { tokens, logProbs, version };
        },
      };
    },
    pause: async () => undefined,
    resume: async () => undefined,
    updateWeights: async (_, next) => {
      version = next;
    },
    stats: async () => ({
      running: 0,
      waiting: waiting.length,
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
      version,
    }),
    close: async () => undefined,
  };
}
