// Arguments of a call as Python writes them: literals by keyword.

const SPACE = /\s/;
const KEYWORD = /[^\s=(),[\]{}'"]{1,256}/y;
const WORD = /[A-Za-z_]\w*/y;
const NUMBER = /([+-]?)(?:(0[xX][\da-fA-F_]+)|(\d[\d_]*)?(\.[\d_]*)?([eE][+-]?\d+)?)/y;
/** Before a text; of other kinds of text nothing is known here. */
const PREFIX = /[rRuU]?(?=['"])/y;
const WORDS: Readonly<Record<string, string>> = {
  True: 'true',
  False: 'false',
  None: 'null',
  true: 'true',
  false: 'false',
  null: 'null',
};
const ESCAPES: Readonly<Record<string, string>> = {
  '\n': '',
  '\\': '\\',
  "'": "'",
  '"': '"',
  a: '\u0007',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
  v: '\v',
};
const CODED = /x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|([0-7]{1,3})/y;
const MOST_LEVELS = 100;

class NoLiteral extends Error {}

/**
 * The JSON of the arguments between the brackets of a call, as {"key": value}; null: they are no literals by keyword. Numbers keep their
 * digits, tuples become arrays, keys of dictionaries texts; True, False and None may be written as in JSON.
 */
export function pythonArguments(source: string): string | null {
  try {
    return new LiteralReader(source).keywords();
  } catch (error) {
    if (error instanceof NoLiteral) return null;
    throw error;
  }
}

class LiteralReader {
  private at = 0;

  constructor(private readonly source: string) {}

  keywords(): string {
    const parts: string[] = [];
    while (this.skipSpace() !== '') {
      const key = this.match(KEYWORD);
      if (key === null) throw new NoLiteral();
      this.expect('=');
      parts.push(`${JSON.stringify(key[0])}: ${this.value(0)}`);
      if (this.skipSpace() !== '') this.expect(',');
    }
    return `{${parts.join(', ')}}`;
  }

  private value(level: number): string {
    if (level > MOST_LEVELS) throw new NoLiteral();
    const c = this.skipSpace();
    if (c === '[') return this.array(']', level);
    if (c === '(') return this.array(')', level);
    if (c === '{') return this.dictionary(level);
    if (this.match(PREFIX, false) !== null) return JSON.stringify(this.text());
    const word = this.match(WORD)?.[0];
    const constant = word !== undefined && Object.hasOwn(WORDS, word) ? WORDS[word] : undefined;
    if (constant !== undefined) return constant;
    if (word !== undefined) throw new NoLiteral();
    return this.number();
  }

  /** A value alone in round brackets is that value. */
  private array(close: string, level: number): string {
    this.at++;
    const values: string[] = [];
    let comma = close === ']';
    while (this.skipSpace() !== close) {
      values.push(this.value(level + 1));
      if (this.skipSpace() === close) break;
      this.expect(',');
      comma = true;
    }
    this.at++;
    return values.length === 1 && !comma ? (values[0] as string) : `[${values.join(', ')}]`;
  }

  private dictionary(level: number): string {
    this.at++;
    const entries: string[] = [];
    while (this.skipSpace() !== '}') {
      const key = this.value(level + 1);
      this.expect(':');
      entries.push(`${key.startsWith('"') ? key : JSON.stringify(key)}: ${this.value(level + 1)}`);
      if (this.skipSpace() !== '}') this.expect(',');
    }
    this.at++;
    return `{${entries.join(', ')}}`;
  }

  private number(): string {
    const found = this.match(NUMBER);
    const [, sign, hex, whole = '', part = '', power = ''] = found ?? [];
    const minus = sign === '-' ? '-' : '';
    if (hex !== undefined) return `${minus}${BigInt(hex.replaceAll('_', ''))}`;
    const [before, behind] = [whole, part.slice(1)].map((digits) => digits.replaceAll('_', ''));
    if (before === '' && behind === '') throw new NoLiteral();
    const integer = (before as string).replace(/^0+(?=\d)/, '') || '0';
    return `${minus}${integer}${part === '' ? '' : `.${behind || '0'}`}${power}`;
  }

  /** One, or several behind each other, which are one. */
  private text(): string {
    let text = '';
    for (;;) {
      const prefix = this.match(PREFIX);
      if (prefix === null) return text;
      text += this.oneText(prefix[0].toLowerCase() === 'r');
      this.skipSpace();
    }
  }

  private oneText(raw: boolean): string {
    const quote = this.source[this.at] as string;
    const three = quote.repeat(3);
    const close = this.source.startsWith(three, this.at) ? three : quote;
    this.at += close.length;
    let text = '';
    while (!this.source.startsWith(close, this.at)) {
      const c = this.source[this.at++];
      if (c === undefined) throw new NoLiteral();
      if (c !== '\\') text += c;
      else text += raw ? c + (this.source[this.at++] ?? '') : this.escaped();
    }
    this.at += close.length;
    return text;
  }

  private escaped(): string {
    const coded = this.match(CODED);
    if (coded !== null) {
      const [, two, four, eight, octal] = coded;
      const code =
        octal === undefined
          ? Number.parseInt((two ?? four ?? eight) as string, 16)
          : Number.parseInt(octal, 8);
      if (code > 0x10ffff) throw new NoLiteral();
      return String.fromCodePoint(code);
    }
    const c = this.source[this.at++];
    if (c === undefined) throw new NoLiteral();
    return ESCAPES[c] ?? `\\${c}`;
  }

  /** The next character that is no space; '': there is none. */
  private skipSpace(): string {
    while (SPACE.test(this.source[this.at] ?? '')) this.at++;
    return this.source[this.at] ?? '';
  }

  private expect(c: string): void {
    if (this.skipSpace() !== c) throw new NoLiteral();
    this.at++;
  }

  private match(pattern: RegExp, take = true): RegExpExecArray | null {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.source);
    if (found !== null && take) this.at += found[0].length;
    return found;
  }
}
