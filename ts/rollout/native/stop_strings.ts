// Texts that end a response, looked for as its tokens come.
import { TextStream } from '../../data/text_stream';
import type { Tokenizer } from '../../data/tokenizer';

const NO_TOKENS: ReadonlySet<number> = new Set();

/** Every token is decoded once, and of the text before it only so much is kept as a stop text may begin in. */
export class StopStrings {
  private readonly stream: TextStream;
  private readonly kept: number;
  private before = '';

  constructor(
    private readonly stops: readonly string[],
    tokenizer: Pick<Tokenizer, 'decode'>,
  ) {
    this.stream = new TextStream(tokenizer, NO_TOKENS);
    this.kept = Math.max(...stops.map((text) => text.length)) - 1;
  }

  /** The text that this token completes, the first of those given; null: none. */
  push(token: number): string | null {
    const text = this.before + this.stream.push(token);
    this.before = text.slice(Math.max(0, text.length - this.kept));
    return this.stops.find((stop) => text.includes(stop)) ?? null;
  }
}
