// Tokens to text as they come: every token is decoded once, and what comes out is what decoding all of them at the end would give.
import type { Tokenizer } from './tokenizer';

const INCOMPLETE = '\ufffd';
/** A character has at most so many bytes, and a token at least one. */
const LONGEST_CHARACTER = 4;

type Decoder = Pick<Tokenizer, 'decode'>;

/**
 * A token may hold a part of a character only, and the text of one may depend on the one before it (a leading blank): what is decoded is
 * the window since the last but one token whose text was complete.
 */
export class TextStream {
  private window: number[] = [];
  /** Tokens of the window whose text has been given out, and that text. */
  private read = 0;
  private given = '';

  /** `skip`: tokens that have no text. */
  constructor(
    private readonly tokenizer: Decoder,
    private readonly skip: ReadonlySet<number>,
  ) {}

  /** The text that a token completes. */
  push(token: number): string {
    if (this.skip.has(token)) return '';
    this.window.push(token);
    const text = this.decode(this.window.length);
    if (!text.endsWith(INCOMPLETE)) return this.give(text, this.window.length);
    if (this.window.length - this.read < LONGEST_CHARACTER) return '';
    return this.giveStart(text);
  }

  /** What is left when no more tokens come. */
  end(): string {
    const text = this.decode(this.window.length);
    return this.give(text, this.window.length);
  }

  /** Bytes that are no text: all of them but the last, which may yet become a character. */
  private giveStart(text: string): string {
    for (let end = this.window.length - LONGEST_CHARACTER + 1; end > this.read; end--) {
      const start = this.decode(end);
      if (text.startsWith(start)) return this.give(start, end);
    }
    return '';
  }

  private give(text: string, end: number): string {
    const fresh = text.slice(this.given.length);
    // Tokens without text are no context for the next one.
    if (fresh === '') return '';
    this.window = this.window.slice(this.read);
    this.read = end - this.read;
    this.given = this.decode(this.read);
    return fresh;
  }

  private decode(end: number): string {
    if (end === 0) return '';
    return this.tokenizer.decode(this.window.slice(0, end), { skipSpecialTokens: false });
  }
}
