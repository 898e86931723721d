// An engine whose responses are kept, and which answers from those that are.
import type { PauseMode, RolloutEngine, RolloutHandle, RolloutStats, WeightSource } from '../engine';
import type { RolloutRequest, RolloutResult, TokenSpan } from '../request';
import { requestKey } from './request_key';
import type { StepRecording } from './step_recording';

/**
 * `engine` for all that `recording` does not have, which it has from then on; a request that it has is answered as it was then, whatever
 * the weights are now. Responses that were cut short are not kept.
 */
export class RecordedRollout implements RolloutEngine {
  /** Requests, and those of them that were answered from the recording. */
  asked = 0;
  recalled = 0;

  constructor(
    private readonly engine: RolloutEngine,
    private readonly recording: StepRecording,
  ) {}

  get version(): number {
    return this.engine.version;
  }

  get maxTokens(): number {
    return this.engine.maxTokens;
  }

  get maxConcurrency(): number {
    return this.engine.maxConcurrency;
  }

  submit(request: RolloutRequest): RolloutHandle {
    const { recording } = this;
    const key = requestKey(request);
    this.asked++;
    const known = key === null ? undefined : recording.get(key);
    if (known !== undefined) {
      this.recalled++;
      return recalled(known);
    }
    const handle = this.engine.submit(request);
    if (key === null) return handle;
    const result = handle.result.then((made) => {
      if (made.finishReason !== 'abort') recording.add(key, made);
      return made;
    });
    // Who follows the spans need not look at it.
    result.catch(() => undefined);
    return {
      result,
      abort: () => handle.abort(),
      [Symbol.asyncIterator]: () => handle[Symbol.asyncIterator](),
    };
  }

  pause(mode: PauseMode): Promise<void> {
    return this.engine.pause(mode);
  }

  resume(): Promise<void> {
    return this.engine.resume();
  }

  updateWeights(source: WeightSource, version: number): Promise<void> {
    return this.engine.updateWeights(source, version);
  }

  stats(): Promise<RolloutStats> {
    return this.engine.stats();
  }

  close(): Promise<void> {
    return this.engine.close();
  }
}

/** All of it at once, in spans of one version each. */
function recalled(result: RolloutResult): RolloutHandle {
  return {
    result: Promise.resolve(result),
    abort: () => undefined,
    async *[Symbol.asyncIterator](): AsyncGenerator<TokenSpan> {
      for (const { version, start, end } of result.versions) {
        const { tokens, logProbs, topLogProbs } = result;
        yield {
          tokens: tokens.subarray(start, end),
          logProbs: logProbs.subarray(start, end),
          ...(topLogProbs ? { topLogProbs: topLogProbs.slice(start, end) } : {}),
          version,
        };
      }
    },
  };
}
