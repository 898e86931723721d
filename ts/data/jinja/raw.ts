// {% raw %} of a template, which the library does not read: its text is put in after the library has taken the source apart.
import type { Token } from './tokens';

const BEGIN = /\{%(-?)\s*raw\s*(-?)%\}/y;
const END = /\{%(-?)\s*endraw\s*(-?)%\}/g;

export interface Source {
  /** With a comment, a mark and a comment in the place of each raw block. */
  readonly text: string;
  readonly mark: string;
  readonly raw: readonly string[];
}

/** @throws for one that does not end */
export function withoutRaw(source: string): Source {
  if (!source.includes('endraw')) return { text: source, mark: '', raw: [] };
  const mark = characterNotIn(source);
  const raw: string[] = [];
  let text = '';
  let from = 0;
  for (let at = nextTag(source, 0); at >= 0; ) {
    BEGIN.lastIndex = at;
    const begin = BEGIN.exec(source);
    if (begin === null) {
      at = nextTag(source, behindTag(source, at));
      continue;
    }
    END.lastIndex = BEGIN.lastIndex;
    const end = END.exec(source);
    if (end === null) throw new Error('{% raw %} has no {% endraw %}');
    raw.push(content(source.slice(BEGIN.lastIndex, end.index), begin[2] === '-', end[1] === '-'));
    // What is taken off around comments is what is taken off around blocks.
    text += `${source.slice(from, at)}{#${begin[1]} raw #}${mark}{# raw ${end[2]}#}`;
    from = END.lastIndex;
    at = nextTag(source, from);
  }
  return { text: text + source.slice(from), mark, raw };
}

export function withRaw(tokens: readonly Token[], { mark, raw }: Source): readonly Token[] {
  let next = 0;
  return tokens.map((token) =>
    token.type === 'Text' && token.value === mark ? { type: 'Text', value: raw[next++] as string } : token,
  );
}

/** One for private use, which there are 6400 of. */
function characterNotIn(source: string): string {
  for (let code = 0xe000; code <= 0xf8ff; code++) {
    const character = String.fromCharCode(code);
    if (!source.includes(character)) return character;
  }
  throw new Error('{% raw %} in a text of all characters for private use is not supported');
}

function content(text: string, stripStart: boolean, stripEnd: boolean): string {
  const rest = stripStart ? text.trimStart() : text;
  if (stripEnd) return rest.trimEnd();
  const line = rest.lastIndexOf('\n') + 1;
  return line > 0 && rest.slice(line).trim() === '' ? rest.slice(0, line) : rest;
}

const TAG = /\{[#{%]/g;

function nextTag(source: string, from: number): number {
  TAG.lastIndex = from;
  return from < 0 ? -1 : (TAG.exec(source)?.index ?? -1);
}

/** Behind a comment, a statement or an expression; -1: it does not end. */
function behindTag(source: string, at: number): number {
  const kind = source[at + 1] as string;
  const close = kind === '{' ? '}}' : `${kind}}`;
  if (kind === '#') return behind(source.indexOf(close, at + 2));
  let quote = '';
  for (let i = at + 2; i < source.length; i++) {
    const character = source[i] as string;
    if (quote !== '') {
      if (character === '\\') i++;
      else if (character === quote) quote = '';
    } else if (character === '"' || character === "'") quote = character;
    else if (source.startsWith(close, i)) return i + 2;
  }
  return -1;
}

const behind = (end: number): number => (end < 0 ? -1 : end + 2);
