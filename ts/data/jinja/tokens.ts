// What Jinja reads and the library's parser does not, said in tokens that it reads.

export interface Token {
  readonly type: string;
  readonly value: string;
}

/** Stands in the place of a filter's name. No name of a template has a blank. */
export const WITH = 'with values';
const TEST = 'is ';
const NEGATED = 'is not ';

/** Of a filter that stands for a test with arguments; null: it is a filter. */
export function testOf(filter: string): { name: string; negate: boolean } | null {
  if (!filter.startsWith(TEST)) return null;
  const negate = filter.startsWith(NEGATED);
  return { name: filter.slice((negate ? NEGATED : TEST).length), negate };
}

/** `{% with a = 1 %}` as a block of a filter, `x is in [1]` as `x | filter([1])`. */
export const rewritten = (tokens: readonly Token[]): Token[] => testsAsFilters(withAsFilters(tokens));

const named = (value: string): Token => ({ type: 'Identifier', value });
const OPEN: Token = { type: 'OpenParen', value: '(' };
const CLOSE: Token = { type: 'CloseParen', value: ')' };

/** @throws for an end that belongs to another block */
function withAsFilters(tokens: readonly Token[]): Token[] {
  const blocks: string[] = [];
  let inWith = false;
  return tokens.flatMap((token, i) => {
    const statement = tokens[i - 1]?.type === 'OpenStatement' ? token.value : null;
    if (statement === 'with' || statement === 'filter') blocks.push(`end${statement}`);
    if (statement === 'endwith' || statement === 'endfilter') {
      const expected = blocks.pop();
      if (statement !== expected)
        throw new Error(`{% ${statement} %} stands where ${expected ?? 'no end of a block'} is expected`);
      return [named('endfilter')];
    }
    if (statement === 'with') {
      inWith = true;
      return [named('filter'), named(WITH), OPEN];
    }
    if (!inWith || token.type !== 'CloseStatement') return [token];
    inWith = false;
    return [CLOSE, token];
  });
}

/** Words that go on with the expression, and are no argument of the test before them. */
const WORDS = ['else', 'or', 'and', 'is', 'if', 'not', 'in'];
const OPENING = ['OpenParen', 'OpenSquareBracket', 'OpenCurlyBracket'];
const CLOSING = ['CloseParen', 'CloseSquareBracket', 'CloseCurlyBracket'];

function testsAsFilters(tokens: readonly Token[]): Token[] {
  const out: Token[] = [];
  /** Arguments without brackets end before the tokens at these places. */
  const ends: number[] = [];
  const closed = closings(tokens);
  for (let i = 0; i < tokens.length; ) {
    while (ends.at(-1) === i) {
      ends.pop();
      out.push(CLOSE);
    }
    const token = tokens[i] as Token;
    const negate = tokens[i + 1]?.value === 'not' && tokens[i + 1]?.type === 'Identifier';
    const at = i + (negate ? 2 : 1);
    const name = tokens[at];
    const argument = tokens[at + 1];
    if (!isTest(tokens, i) || name?.type !== 'Identifier' || !beginsArgument(argument)) {
      out.push(token);
      i++;
      continue;
    }
    out.push({ type: 'Pipe', value: '|' }, named((negate ? NEGATED : TEST) + name.value));
    if (argument?.type !== 'OpenParen') {
      out.push(OPEN);
      ends.push(endOfArgument(tokens, closed, at + 1));
    }
    i = at + 1;
  }
  return out;
}

const isTest = (tokens: readonly Token[], i: number): boolean =>
  tokens[i]?.type === 'Identifier' && tokens[i]?.value === 'is' && tokens[i - 1]?.type !== 'Dot';

function beginsArgument(token: Token | undefined): boolean {
  if (token === undefined) return false;
  if (token.type === 'Identifier') return !WORDS.includes(token.value);
  return OPENING.includes(token.type) || token.type === 'StringLiteral' || token.type === 'NumericLiteral';
}

/** Behind a value and what is taken of it by dots and brackets. `closed`: behind its end, for each bracket. */
function endOfArgument(tokens: readonly Token[], closed: ReadonlyMap<number, number>, from: number): number {
  const after = (at: number): number => closed.get(at) ?? at + 1;
  let end = after(from);
  for (;;) {
    const type = tokens[end]?.type;
    if (type === 'Dot') end += 2;
    else if (type === 'OpenParen' || type === 'OpenSquareBracket') end = after(end);
    else return Math.min(end, tokens.length);
  }
}

/** Where each bracket is closed; one that is not is left out. */
function closings(tokens: readonly Token[]): Map<number, number> {
  const closed = new Map<number, number>();
  const open: number[] = [];
  for (const [i, { type }] of tokens.entries()) {
    if (OPENING.includes(type)) open.push(i);
    else if (CLOSING.includes(type)) {
      const at = open.pop();
      if (at !== undefined) closed.set(at, i + 1);
    }
  }
  return closed;
}
