// Texts that end a response, looked for as its tokens come.

export type DecodeTokens = (tokens: ArrayLike<number>) => string;

/** A character has at most four bytes, and a token at least one. */
const TOKENS_PER_CHARACTER = 4;
/** The text of a token may depend on what is before it. */
const CONTEXT = 8;

export class StopStrings {
  private readonly window: number[] = [];
  private readonly longest: number;

  constructor(
    private readonly stops: readonly string[],
    private readonly decode: DecodeTokens,
  ) {
    this.longest = TOKENS_PER_CHARACTER * Math.max(...stops.map((text) => text.length)) + CONTEXT;
  }

  /** The text that this token completes, the first of those given; null: none. */
  push(token: number): string | null {
    this.window.push(token);
    if (this.window.length > this.longest) this.window.shift();
    const text = this.decode(this.window);
    return this.stops.find((stop) => text.includes(stop)) ?? null;
  }
}
