// The bytes that each token of a vocabulary stands for.
import type { Tokenizer } from './tokenizer';

/** GPT-2's table: printable bytes are themselves, the others are the characters from U+0100 on, in order. */
const CHARACTERS: readonly string[] = (() => {
  const printable = (b: number): boolean => (b >= 33 && b <= 126) || (b >= 161 && b !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCodePoint(printable(b) ? b : next++));
})();
const BYTES: ReadonlyMap<string, number> = new Map(CHARACTERS.map((character, b) => [character, b]));

/** Bytes by GPT-2's table: a character each. */
export const byteLevelText = (bytes: Uint8Array): string => Array.from(bytes, (b) => CHARACTERS[b]).join('');

const encoder = new TextEncoder();
const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export class TokenBytes {
  private readonly added: ReturnType<Tokenizer['addedTokens']>;
  private longestKnown: number | null = null;

  constructor(private readonly tokenizer: Tokenizer) {
    this.added = tokenizer.addedTokens();
  }

  /** Bytes that a token has at most; infinite where one may stand for any length of text that the vocabulary does not know. */
  get longest(): number {
    if (this.tokenizer.byteCoding === 'raw') return Number.POSITIVE_INFINITY;
    this.longestKnown ??= Array.from({ length: this.tokenizer.vocabSize }).reduce(
      (most: number, _, id) => Math.max(most, this.bytes(id).length),
      1,
    );
    return this.longestKnown;
  }

  /** None for an id that is no token. */
  bytes(id: number): Uint8Array {
    const added = this.added.get(id);
    if (added !== undefined) return encoder.encode(added.content);
    const text = this.tokenizer.tokenString(id);
    if (text === null) return new Uint8Array(0);
    if (this.tokenizer.byteCoding === 'byte_level') return this.byteLevel(text);
    if (this.tokenizer.byteCoding === 'raw') return encoder.encode(text);
    const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(text);
    return byte === null
      ? encoder.encode(text.replaceAll('\u2581', ' '))
      : Uint8Array.of(Number.parseInt(byte[1] as string, 16));
  }

  /** The text of a token by itself; null: its bytes are none. */
  text(id: number): string | null {
    try {
      return strict.decode(this.bytes(id));
    } catch {
      return null;
    }
  }

  private byteLevel(text: string): Uint8Array {
    const bytes = Array.from(text, (character) => BYTES.get(character));
    // Some vocabularies have tokens that were added later among those of the model, as plain text.
    return bytes.includes(undefined) ? encoder.encode(text) : Uint8Array.from(bytes as number[]);
  }
}
