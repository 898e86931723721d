import { printable } from '../../base/printable';
import { ConfigError } from '../../errors';

const MOST_LEVELS = 50;

// The values of Hydra's command line (its override grammar): [a,b], {a:1,b:2}, quoted strings, null, true, numbers, and plain
// text. Differs from YAML where people meet it: {a:1} needs no space.

/**
 * @param where for messages
 * @throws ConfigError when brackets or quotes do not match
 */
export function parseHydraValue(text: string, where: string): unknown {
  const parser = new ValueParser(trimmed(text), where);
  return parser.all();
}

class ValueParser {
  private at = 0;
  private levels = 0;

  constructor(
    private readonly text: string,
    private readonly where: string,
  ) {}

  all(): unknown {
    const structured = /^[[{'"]/.test(this.text);
    if (!structured) return primitive(this.text);
    const value = this.value('');
    this.space();
    if (this.at < this.text.length) {
      // 'it''s: text that begins with a quote but is more than a quoted string.
      if (/^['"]/.test(this.text)) return this.text;
      throw this.error(`unexpected "${printable(this.text.slice(this.at), { max: 60 })}"`);
    }
    return value;
  }

  private value(ends: string): unknown {
    this.space();
    if (this.levels >= MOST_LEVELS)
      throw this.error(`expected at most ${MOST_LEVELS} brackets within brackets`);
    const first = this.text[this.at];
    if (first === '[' || first === '{') {
      this.levels++;
      const value = first === '[' ? this.list() : this.dict();
      this.levels--;
      return value;
    }
    if (first === '"' || first === "'") return this.quoted(first);
    return primitive(this.bare(ends));
  }

  private list(): unknown[] {
    const items: unknown[] = [];
    this.at++;
    while (!this.take(']')) {
      items.push(this.value(',]'));
      if (!this.take(',')) {
        this.expect(']');
        break;
      }
    }
    return items;
  }

  private dict(): Record<string, unknown> {
    const entries: [string, unknown][] = [];
    this.at++;
    while (!this.take('}')) {
      const key = this.value(':');
      this.expect(':');
      entries.push([String(key), this.value(',}')]);
      if (!this.take(',')) {
        this.expect('}');
        break;
      }
    }
    return Object.fromEntries(entries);
  }

  /** Of backslashes before the quote two stand for one, and one that is left over is for the quote; all others are text. */
  private quoted(quote: string): string {
    let out = '';
    for (let start = this.at + 1; ; ) {
      const at = this.text.indexOf(quote, start);
      if (at < 0) throw this.error(`the quote ${quote} is not closed`);
      let slashes = 0;
      while (at - slashes > start && this.text[at - slashes - 1] === '\\') slashes++;
      out += this.text.slice(start, at - slashes) + '\\'.repeat(slashes >> 1);
      start = at + 1;
      if (slashes % 2 === 0) {
        this.at = start;
        return out;
      }
      out += quote;
    }
  }

  /** Plain text up to one of `ends`; a ${...} in it is taken whole. */
  private bare(ends: string): string {
    const start = this.at;
    let depth = 0;
    for (; this.at < this.text.length; this.at++) {
      const character = this.text[this.at] as string;
      if (depth === 0 && character === '\\' && ESCAPED.includes(this.text[this.at + 1] ?? '.')) this.at++;
      else if (character === '{' && this.text[this.at - 1] === '$') depth++;
      else if (depth > 0 && character === '}') depth--;
      else if (depth === 0 && ends.includes(character)) break;
    }
    const text = trimmed(this.text.slice(start, this.at));
    if (text === '') throw this.error(`expected a value at "${this.text.slice(start)}"`);
    return text;
  }

  private space(): void {
    while (/\s/.test(this.text[this.at] ?? '')) this.at++;
  }

  private take(character: string): boolean {
    this.space();
    if (this.text[this.at] !== character) return false;
    this.at++;
    return true;
  }

  private expect(character: string): void {
    if (this.take(character)) return;
    const rest = this.text.slice(this.at);
    throw this.error(`expected "${character}" ${rest === '' ? 'at the end' : `at "${rest}"`}`);
  }

  private error(why: string): ConfigError {
    return new ConfigError(`${this.where}: ${why}`);
  }
}

/** Of plain text: after a backslash they stand for themselves. */
const ESCAPED = '\\()[]{}:=, \t';

/** Without the blanks around it, but for an escaped one at the end. */
function trimmed(text: string): string {
  const short = text.trim();
  const escaped = (/\\*$/.exec(short) as RegExpExecArray)[0].length % 2 === 1;
  return escaped ? text.trimStart().slice(0, short.length + 1) : short;
}

/** A reference is left as it is: what stands in it is read when it is resolved. */
function unescaped(text: string): string {
  let out = '';
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const character = text[at] as string;
    if (depth === 0 && character === '\\' && ESCAPED.includes(text[at + 1] ?? '.')) {
      out += text[++at];
      continue;
    }
    if (character === '{' && text[at - 1] === '$') depth++;
    else if (depth > 0 && character === '}') depth--;
    out += character;
  }
  return out;
}

// 007 is text, as a name may be.
const WHOLE = '(?:0|[1-9](?:_?\\d)*)';
const DIGITS = '\\d(?:_?\\d)*';
const INTEGER = new RegExp(`^[+-]?${WHOLE}$`);
const FLOAT = new RegExp(
  `^[+-]?(?:${WHOLE}\\.|${WHOLE}?\\.${DIGITS}|${WHOLE}(?=e))(?:e[+-]?${DIGITS})?$`,
  'i',
);

/** null, true, false and numbers; anything else is text. Hydra has no ~ for null, YAML has. */
function primitive(text: string): unknown {
  const lower = text.toLowerCase();
  if (lower === 'null' || text === '~') return null;
  if (lower === 'true' || lower === 'false') return lower === 'true';
  if (INTEGER.test(text) || FLOAT.test(text)) return Number(text.replaceAll('_', ''));
  return unescaped(text);
}
