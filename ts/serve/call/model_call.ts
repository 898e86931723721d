// One response to token ids, as text and calls of tools that come piece by piece, and as the exact tokens that the engine made.
import type { PromptImage } from '../../batch/prompt_image';
import { TextStream } from '../../data/text_stream';
import type { TokenBytes } from '../../data/token_bytes';
import type { RolloutHandle } from '../../rollout/engine';
import type {
  RolloutRequest,
  RolloutResult,
  SamplingParams,
  TokenSpan,
  TopLogProb,
} from '../../rollout/request';
import { StopTexts } from '../text/stop_texts';
import type { CallReading } from '../tools/families';
import {
  CallCollector,
  type ParsedText,
  type ToolCall,
  type ToolCallDelta,
  type ToolParser,
} from '../tools/tool_parser';
import { endsInThought } from './open_thought';
import type { ServedModel } from './served_model';

/** What a dialect makes of a request of its own. */
export interface ModelCall {
  promptIds: ArrayLike<number>;
  /** Without stop texts: these are looked for here, so that every engine has them. */
  sampling: SamplingParams;
  stop: readonly string[];
  /** Whose calls are read; null: everything is text. */
  tools: CallReading | null;
  /** Of several calls only the first one counts. */
  oneCall?: boolean;
  /** Give special tokens out as text. */
  specialTokens?: boolean;
  request?: Omit<RolloutRequest, 'promptIds' | 'sampling'>;
  /** Called once, when the engine has ended it: also where nobody reads it. */
  release?(): void;
}

/** What came of some tokens; text and calls may be empty while they are not complete. */
export interface CallDelta {
  tokens: number[];
  /** [n] */
  logProbs: number[];
  topLogProbs: TopLogProb[][];
  /** [n] Characters (code points) of all text before each token; of one that is a part of a character, before what it is known with. */
  offsets: number[];
  text: string;
  calls: ToolCallDelta[];
  /** What the model thinks, of families that say so. */
  reasoning: string;
}

const emptyDelta = (): CallDelta => ({
  tokens: [],
  logProbs: [],
  topLogProbs: [],
  offsets: [],
  text: '',
  calls: [],
  reasoning: '',
});

/** What a response was made of, for whoever learns from it. */
export interface CallRecord {
  promptIds: ArrayLike<number>;
  /** Of the prompt. */
  images: readonly PromptImage[];
  /** [R] up to the one that completed a stop text. */
  tokens: Int32Array;
  /** [R] */
  logProbs: Float32Array;
  versions: RolloutResult['versions'];
  finish: CallFinish;
  text: string;
  calls: readonly ToolCall[];
  /** What the model thought, of families that say so. */
  reasoning: string;
  cachedTokens: number;
  /** The stop text that ended it. */
  stopText: string | null;
}

/** What a response has taken, read to its end or not. */
export type CallCost = Pick<CallRecord, 'promptIds' | 'tokens' | 'cachedTokens' | 'finish'>;

/** abort: nobody waits for it, or the engine was stopped. */
export type CallFinish = 'stop' | 'length' | 'tool_calls' | 'abort';

/** Deltas once, and the record at the end. A reader that stops early aborts it. */
export class RunningCall implements AsyncIterable<CallDelta> {
  private readonly handle: RolloutHandle;
  private readonly stream: TextStream;
  private readonly bytes: TokenBytes;
  private readonly stops: StopTexts;
  private readonly parser: ToolParser | null;
  private readonly collector = new CallCollector();
  private readonly tokens: number[] = [];
  private readonly logProbs: number[] = [];
  private text = '';
  private reasoning = '';
  /** Characters of what the tokens so far have completed. */
  private decoded = 0;
  private stopText: string | null = null;
  private whole: CallRecord | null = null;

  constructor(
    { engine, tokenizer, bytes }: Pick<ServedModel, 'engine' | 'tokenizer' | 'bytes'>,
    private readonly call: ModelCall,
  ) {
    const { promptIds, sampling, request, tools } = call;
    this.stream = new TextStream(tokenizer, hiddenTokens(tokenizer, call));
    this.bytes = bytes;
    this.stops = new StopTexts(call.stop);
    this.parser = tools?.parser(endsInThought(tokenizer, promptIds, tools)) ?? null;
    this.handle = engine.submit({ ...request, promptIds, sampling });
    // Of an error, whoever reads the spans hears.
    const ended = (): void => call.release?.();
    this.handle.result.then(ended, ended);
  }

  /** Ends it with what it has. */
  abort(): void {
    this.handle.abort();
  }

  /** After the last delta. */
  get record(): CallRecord {
    if (this.whole === null) throw new Error('the response is not complete: read all deltas first');
    return this.whole;
  }

  /** Resolves when the engine has ended it; what nobody has read to its end counts as aborted. Rejects as the engine does. */
  async cost(): Promise<CallCost> {
    const { tokens, cachedTokens } = await this.handle.result;
    return this.whole ?? { promptIds: this.call.promptIds, tokens, cachedTokens, finish: 'abort' };
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<CallDelta> {
    try {
      for await (const span of this.handle) {
        yield this.read(span);
        if (this.stopped) break;
      }
      // A reader that breaks off is not an end of the stream: what follows is for the others only.
      if (this.stopped) this.handle.abort();
      const result = await this.handle.result;
      if (!this.stopped) yield this.rest(result.finishReason !== 'stop');
      this.whole = this.recordOf(result);
    } finally {
      this.handle.abort();
    }
  }

  private read(span: TokenSpan): CallDelta {
    const delta = emptyDelta();
    for (let i = 0; i < span.tokens.length && !this.stopped; i++) {
      const token = span.tokens[i] as number;
      delta.tokens.push(token);
      delta.logProbs.push(span.logProbs[i] as number);
      const top = span.topLogProbs?.[i];
      if (top !== undefined) delta.topLogProbs.push(top);
      const completed = this.stream.push(token);
      delta.offsets.push(this.decoded + this.brokenBefore(token, completed));
      for (const _ of completed) this.decoded++;
      const { text, stop } = this.stops.push(completed);
      this.parse(text, delta);
      this.stopText = stop;
    }
    if (this.stopped) this.endParsing(delta, false);
    for (const token of delta.tokens) this.tokens.push(token);
    for (const logProb of delta.logProbs) this.logProbs.push(logProb);
    return delta;
  }

  /** Characters that a token has completed and that are not its own: bytes before it that turn out to be no text. */
  private brokenBefore(token: number, completed: string): number {
    if (!completed.startsWith('\ufffd')) return 0;
    const own = this.bytes.text(token);
    if (own === null || !completed.endsWith(own)) return 0;
    return [...completed.slice(0, completed.length - own.length)].length;
  }

  /** What was held back until it was sure that nothing follows. */
  private rest(cut: boolean): CallDelta {
    const delta = emptyDelta();
    const { text, stop } = this.stops.push(this.stream.end());
    this.parse(stop === null ? text + this.stops.end() : text, delta);
    this.stopText = stop;
    this.endParsing(delta, cut && stop === null);
    return delta;
  }

  private parse(text: string, delta: CallDelta): void {
    if (text === '') return;
    this.add(this.parser?.push(text) ?? { text, calls: [] }, delta);
  }

  private endParsing(delta: CallDelta, cut: boolean): void {
    if (this.parser !== null) this.add(this.parser.end(cut), delta);
  }

  private add({ text, calls, reasoning = '' }: ParsedText, delta: CallDelta): void {
    const counted = this.call.oneCall ? calls.filter(({ index }) => index === 0) : calls;
    delta.text += text;
    delta.calls.push(...counted);
    this.text += text;
    delta.reasoning += reasoning;
    this.reasoning += reasoning;
    this.collector.add(counted);
  }

  private recordOf(result: RolloutResult): CallRecord {
    const end = this.tokens.length;
    const { calls } = this.collector;
    const own = this.stopped ? 'stop' : result.finishReason;
    return {
      promptIds: this.call.promptIds,
      images: this.call.request?.images ?? [],
      tokens: Int32Array.from(this.tokens),
      logProbs: Float32Array.from(this.logProbs),
      versions: result.versions
        .filter(({ start }) => start < end || start === 0)
        .map((span) => ({ ...span, end: Math.min(span.end, end) })),
      finish: own === 'stop' && calls.length > 0 ? 'tool_calls' : own,
      text: this.text,
      calls,
      reasoning: this.reasoning,
      cachedTokens: result.cachedTokens,
      stopText: this.stopText,
    };
  }

  private get stopped(): boolean {
    return this.stopText !== null;
  }
}

/** Special tokens are no text, but for those that the family's parser looks for. */
function hiddenTokens(tokenizer: ServedModel['tokenizer'], call: ModelCall): ReadonlySet<number> {
  if (call.specialTokens) return new Set();
  const shown = call.tools?.tags ?? [];
  const added = [...tokenizer.addedTokens()];
  return new Set(
    added.filter(([, token]) => token.special && !shown.includes(token.content)).map(([id]) => id),
  );
}
