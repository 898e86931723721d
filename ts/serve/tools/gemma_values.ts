// Values as Gemma 4 writes them: keys without quotation marks, texts between two tokens, everything else as in JSON without spaces.

export const CALL_OPEN = '<|tool_call>';
export const CALL_CLOSE = '<tool_call|>';
/** Around a text, which has no escapes. */
export const QUOTE = '<|"|>';

const SPACE = /\s*/y;
const BARE_KEY = /[^\s<>{}[\],:"]+(?: +[^\s<>{}[\],:"]+)*/y;
const BARE = /[^\s<>{}[\],"][^<>{}[\],"]*/y;
const NUMBER = /^([+-]?)0*(\d*)(?:(\.)(\d*))?([eE][+-]?\d+)?$/;
/** Some templates have written null as Python does. */
const WORDS: Readonly<Record<string, string>> = { true: 'true', false: 'false', null: 'null', none: 'null' };
const MOST_LEVELS = 100;

class NoValues extends Error {}

/** The JSON of the arguments of a call, of {key:value,…} with its brackets; null: they are none. Numbers keep their digits. */
export function gemmaArguments(source: string): string | null {
  try {
    return new ValueReader(source).whole();
  } catch (error) {
    if (error instanceof NoValues) return null;
    throw error;
  }
}

class ValueReader {
  private at = 0;

  constructor(private readonly source: string) {}

  whole(): string {
    if (this.next() !== '{') throw new NoValues();
    const read = this.object(0);
    if (this.next() !== '') throw new NoValues();
    return read;
  }

  private value(level: number): string {
    if (level > MOST_LEVELS) throw new NoValues();
    const c = this.next();
    if (c === '{') return this.object(level);
    if (c === '[') return `[${this.parts(']', () => this.value(level + 1)).join(', ')}]`;
    return this.quoted() ?? bareJson(this.match(BARE).trimEnd());
  }

  private object(level: number): string {
    const entries = this.parts('}', () => {
      const key = this.quoted() ?? JSON.stringify(this.match(BARE_KEY));
      this.expect(':');
      return `${key}: ${this.value(level + 1)}`;
    });
    return `{${entries.join(', ')}}`;
  }

  /** Up to a bracket; a comma may stand before that. */
  private parts(close: string, read: () => string): string[] {
    this.at++;
    const all: string[] = [];
    while (this.next() !== close) {
      all.push(read());
      if (this.next() !== close) this.expect(',');
    }
    this.at++;
    return all;
  }

  /** The JSON of a text between its tokens, or quotation marks as in JSON, which models fall back to; null: there is none. */
  private quoted(): string | null {
    if (this.source.startsWith(QUOTE, this.at)) {
      const begin = this.at + QUOTE.length;
      const end = this.source.indexOf(QUOTE, begin);
      if (end < 0) throw new NoValues();
      this.at = end + QUOTE.length;
      return JSON.stringify(this.source.slice(begin, end));
    }
    if (this.source[this.at] !== '"') return null;
    const end = jsonTextEnd(this.source, this.at);
    const written = this.source.slice(this.at, end);
    this.at = end;
    try {
      return JSON.stringify(JSON.parse(written));
    } catch {
      throw new NoValues();
    }
  }

  /** The next character that is no space; '': there is none. */
  private next(): string {
    this.match(SPACE);
    return this.source[this.at] ?? '';
  }

  private expect(c: string): void {
    if (this.next() !== c) throw new NoValues();
    this.at++;
  }

  private match(pattern: RegExp): string {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.source)?.[0];
    if (found === undefined) throw new NoValues();
    this.at += found.length;
    return found;
  }
}

/** Behind the text that begins at `begin`; where nothing ends it, behind everything. */
function jsonTextEnd(source: string, begin: number): number {
  for (let at = begin + 1; at < source.length; at++) {
    if (source[at] === '\\') at++;
    else if (source[at] === '"') return at + 1;
  }
  return source.length;
}

/** A text that lacks its tokens is one nevertheless. */
function bareJson(written: string): string {
  const word = written.toLowerCase();
  if (Object.hasOwn(WORDS, word)) return WORDS[word] as string;
  const [, sign, whole = '', point = '', part = '', power = ''] = NUMBER.exec(written) ?? [];
  if (sign === undefined || !/\d/.test(written)) return JSON.stringify(written);
  if (whole === '' && part === '' && !/^[+-]?0/.test(written)) return JSON.stringify(written);
  return `${sign === '-' ? '-' : ''}${whole || '0'}${point === '' ? '' : `.${part || '0'}`}${power}`;
}

/** Whether a text can stand between its tokens. */
export const isGemmaText = (text: string): boolean =>
  ![QUOTE, CALL_OPEN, CALL_CLOSE].some((tag) => text.includes(tag));

/** A key, with a colon behind it; null: it cannot be written. */
export function gemmaKey(key: string): string | null {
  BARE_KEY.lastIndex = 0;
  if (BARE_KEY.exec(key)?.[0] === key) return `${key}:`;
  return isGemmaText(key) ? `${QUOTE}${key}${QUOTE}:` : null;
}

/** As the chat template writes a value of JSON; null: it cannot be written. */
export function gemmaText(value: unknown): string | null {
  if (typeof value === 'string') return isGemmaText(value) ? `${QUOTE}${value}${QUOTE}` : null;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return joined('[', value.map(gemmaText), ']');
  const entries = inOrder(Object.entries(value)).map(([key, one]) => {
    const [name, text] = [gemmaKey(key), gemmaText(one)];
    return name === null || text === null ? null : name + text;
  });
  return joined('{', entries, '}');
}

const joined = (open: string, parts: (string | null)[], close: string): string | null =>
  parts.includes(null) ? null : `${open}${parts.join(',')}${close}`;

/** Sorted by name without regard to case, as the template has them. */
export const inOrder = <T>(entries: readonly [string, T][]): [string, T][] =>
  entries
    .map(([key, value]) => ({ key, value, sorted: key.toLowerCase() }))
    .sort((a, b) => (a.sorted < b.sorted ? -1 : a.sorted > b.sorted ? 1 : 0))
    .map(({ key, value }) => [key, value]);
