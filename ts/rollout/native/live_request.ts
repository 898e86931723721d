// A request of the native engine from submission to its end, and what its caller holds of it.

import { timerMs } from '../../base/timers';
import { TroupeError } from '../../errors';
import type { NativeRolloutOutput } from '../../native/bridge';
import type { SharedSampling } from '../check_request';
import type { RolloutHandle } from '../engine';
import type { FinishReason, RolloutRequest, RolloutResult, TokenSpan, TopLogProb } from '../request';
import { ResponseTokens } from './response_tokens';
import type { StopStrings } from './stop_strings';

/** What becomes of a request that has been given new tokens. */
export type Progress = 'runs' | 'ended' | 'stopped';

export class LiveRequest implements RolloutHandle {
  readonly result: Promise<RolloutResult>;
  ended = false;
  /** Who serves it, once that is known. */
  rank: number | null = null;
  private readonly response: ResponseTokens;
  private promptLogProbs: Float32Array | null = null;
  private routedExperts: Uint8Array | null = null;
  private cachedTokens = 0;
  private stopText: string | undefined;
  /** Who waits for spans. */
  private readers: (() => void)[] | null = null;
  private resolve!: (result: RolloutResult) => void;
  private reject!: (error: unknown) => void;
  private timer: NodeJS.Timeout | null = null;

  constructor(
    readonly id: number,
    readonly promptIds: Int32Array,
    readonly sampling: SharedSampling,
    readonly request: RolloutRequest,
    private readonly stops: StopStrings | null,
    private readonly onAbort: (request: LiveRequest) => void,
  ) {
    this.response = new ResponseTokens(sampling.topLogProbs > 0);
    this.result = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    // Who only reads the spans has not asked for the result.
    this.result.catch(() => undefined);
    if (request.deadlineMs !== undefined) {
      this.timer = setTimeout(() => this.abort(), timerMs(request.deadlineMs));
      this.timer.unref();
    }
  }

  abort(): void {
    if (!this.ended) this.onAbort(this);
  }

  /** stopped: by a stop text, of which the engine below does not know. */
  take(output: NativeRolloutOutput): Progress {
    if (this.ended) return 'ended';
    if (output.error !== null) {
      this.fail(requestError(output.error, output.nonFinite));
      return 'ended';
    }
    this.cachedTokens = output.cachedTokens;
    this.promptLogProbs ??= output.promptLogProbs;
    this.routedExperts ??= output.routedExperts;
    const kept = this.keptOf(output.tokens);
    if (kept > 0) {
      const last = this.stopText !== undefined || output.finish !== 'none';
      this.response.append(spanOf(output, kept, this.sampling.topLogProbs), last);
      this.wake();
    }
    if (this.stopText !== undefined) {
      this.finish('stop');
      return 'stopped';
    }
    if (output.finish === 'none') return 'runs';
    this.finish(output.finish);
    return 'ended';
  }

  finish(finishReason: FinishReason): void {
    if (this.ended) return;
    this.resolve({
      ...this.response.whole(),
      ...(this.sampling.topLogProbs > 0 ? { topLogProbs: this.response.topLogProbs } : {}),
      ...(this.sampling.promptLogProbs
        ? { promptLogProbs: this.promptLogProbs ?? new Float32Array(this.promptIds.length).fill(Number.NaN) }
        : {}),
      ...(this.routedExperts ? { routedExperts: this.withLast(this.routedExperts) } : {}),
      finishReason,
      ...(this.stopText === undefined ? {} : { stopText: this.stopText }),
      versions: this.response.versions,
      cachedTokens: this.cachedTokens,
    });
    this.end();
  }

  fail(error: unknown): void {
    if (this.ended) return;
    this.reject(error);
    this.end();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<TokenSpan> {
    for (;;) {
      const span = this.response.next();
      if (span !== null) yield span;
      else if (this.ended) break;
      else
        await new Promise<void>((resolve) => {
          this.readers = [...(this.readers ?? []), resolve];
        });
    }
    await this.result;
  }

  /** How many of the tokens belong to the response: up to the one that completes a stop text. */
  private keptOf(tokens: Int32Array): number {
    if (this.stops === null) return tokens.length;
    for (const [i, token] of tokens.entries()) {
      const text = this.stops.push(token);
      if (text === null) continue;
      this.stopText = text;
      return i + 1;
    }
    return tokens.length;
  }

  /** The last token goes nowhere: zeros. */
  private withLast(experts: Uint8Array): Uint8Array {
    const length = this.promptIds.length + this.response.whole().tokens.length;
    const all = new Uint8Array(experts.length + experts.length / (length - 1));
    all.set(experts);
    return all;
  }

  private end(): void {
    this.ended = true;
    if (this.timer !== null) clearTimeout(this.timer);
    this.wake();
  }

  private wake(): void {
    const readers = this.readers;
    this.readers = null;
    for (const reader of readers ?? []) reader();
  }
}

/** What a caller is told of an error that the engine found in a request. */
export const requestError = (error: string, nonFinite: boolean): TroupeError =>
  new TroupeError(nonFinite ? 'NON_FINITE' : 'INVALID_ARGUMENT', error);

function spanOf(output: NativeRolloutOutput, count: number, top: number): TokenSpan {
  const { tokens, logProbs, version } = output;
  const all = count === tokens.length;
  const span = {
    tokens: all ? tokens : tokens.subarray(0, count),
    logProbs: all ? logProbs : logProbs.subarray(0, count),
    version,
  };
  if (top === 0) return span;
  const each = output.topTokens.length / Math.max(1, tokens.length);
  const topLogProbs = Array.from({ length: count }, (_, i) =>
    Array.from(
      output.topTokens.subarray(i * each, (i + 1) * each),
      (token, k): TopLogProb => ({ token, logProb: output.topLogProbs[i * each + k] as number }),
    ),
  );
  return { ...span, topLogProbs };
}
