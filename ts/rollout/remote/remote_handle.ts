// A request to inference servers: what has come of it, whichever of them it came from.
import type { RolloutHandle } from '../engine';
import type { FinishReason, RolloutRequest, RolloutResult, TokenSpan, TopLogProb } from '../request';
import type { ServerPart } from './server_protocol';

export class RemoteHandle implements RolloutHandle {
  readonly result: Promise<RolloutResult>;
  readonly tokens: number[] = [];
  private readonly logProbs: number[] = [];
  private readonly top: TopLogProb[][] = [];
  private versions: RolloutResult['versions'] = [];
  private cachedTokens: number | null = null;
  /** Tokens that have been handed out: a span is made when it is read, since most responses are read as a whole. */
  private read = 0;
  private wake: () => void = () => undefined;
  private over = false;
  private resolve!: (result: RolloutResult) => void;
  private reject!: (error: unknown) => void;
  /** Breaks off the call that is running. */
  private readonly controller = new AbortController();

  constructor(
    readonly request: RolloutRequest,
    private readonly wantsTop: boolean,
    /** Its tokens are handed out at its end: until then it may begin again. */
    private readonly held: boolean,
  ) {
    this.result = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    this.result.catch(() => undefined);
  }

  get ended(): boolean {
    return this.over;
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Forgets what has come; false: some of it has been handed out, and stays. */
  startOver(): boolean {
    if (this.read > 0) return false;
    this.tokens.length = 0;
    this.logProbs.length = 0;
    this.top.length = 0;
    this.versions = [];
    this.cachedTokens = null;
    return true;
  }

  /**
   * `start`: tokens that were there when the server that sends it began; `begunWith`, `now`: what is known of the weights that the server had then, and
   * has now, where it does not say which of them made a token.
   */
  add(part: ServerPart, start: number, { begunWith, now }: { begunWith: number; now: number }): void {
    const from = this.tokens.length;
    // One by one: a whole response may have more of them than a call has room for arguments.
    for (const token of part.tokens) this.tokens.push(token);
    for (const logProb of part.logProbs) this.logProbs.push(logProb);
    if (this.wantsTop) for (const top of part.topLogProbs ?? []) this.top.push(top);
    // For a server that goes on with a response, this is part of the prompt.
    if (part.cachedTokens !== undefined)
      this.cachedTokens ??= Math.min(part.cachedTokens, this.request.promptIds.length);
    const to = this.tokens.length;
    const said = part.versions ?? [];
    if (said.length > 0) {
      this.versions = this.versions
        .filter((span) => span.start < start)
        .map((span) => ({ ...span, end: Math.min(span.end, start) }));
      for (const span of said) this.extend(span.version, start + span.start, start + span.end);
    } else if (part.endVersion !== undefined && part.endVersion !== begunWith) {
      // Any of the tokens before the last may be of either: they count as of the older one, as if they were as stale as they can be.
      this.extend(begunWith, from, Math.max(from, to - 1));
    }
    this.extend(part.endVersion ?? now, this.versions.at(-1)?.end ?? from, to);
    this.wake();
  }

  finish(finishReason: FinishReason): void {
    if (this.over) return;
    this.over = true;
    this.resolve({
      tokens: Int32Array.from(this.tokens),
      logProbs: Float32Array.from(this.logProbs),
      ...(this.wantsTop ? { topLogProbs: this.top } : {}),
      finishReason,
      versions: this.versions,
      cachedTokens: this.cachedTokens ?? 0,
    });
    this.wake();
  }

  fail(error: unknown): void {
    if (this.over) return;
    this.over = true;
    this.reject(error);
    this.wake();
  }

  abort(): void {
    if (this.over) return;
    this.finish('abort');
    this.controller.abort();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<TokenSpan> {
    for (;;) {
      const span = this.held && !this.over ? null : this.next();
      if (span !== null) yield span;
      else if (this.over) break;
      else
        await new Promise<void>((resolve) => {
          this.wake = resolve;
        });
    }
    await this.result;
  }

  /** What has come since the last one, as far as one version of the weights made it; null: nothing. */
  private next(): TokenSpan | null {
    const start = this.read;
    const run = this.versions.find((one) => one.end > start);
    if (run === undefined) return null;
    const { version, end } = run;
    this.read = end;
    return {
      tokens: Int32Array.from(this.tokens.slice(start, end)),
      logProbs: Float32Array.from(this.logProbs.slice(start, end)),
      ...(this.wantsTop ? { topLogProbs: this.top.slice(start, end) } : {}),
      version,
    };
  }

  private extend(version: number, start: number, end: number): void {
    const last = this.versions.at(-1);
    if (last?.version === version && last.end === start) last.end = end;
    else if (end > start || this.versions.length === 0) this.versions.push({ version, start, end });
  }
}
