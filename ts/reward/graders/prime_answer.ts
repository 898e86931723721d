// Where prime_math finds the answer of a response, and what of its text counts.
import { balanced } from './boxed';
import { strip } from './python_text';

const BEFORE = /answers?(?:(?: is| are):?|:)/gi;
const AFTER = /(?:is|are)(?: the)? answers?/gi;

/** In the order in which each cuts off what stands before its last place. */
const LEADS = ['be ', 'is ', 'are ', '=', ': ', 'get ', 'be\n', 'is\n', 'are\n', ':\n', 'get\n'];

/** What the last `\boxed{...}` holds, else the last `\fbox{...}`; null without one, or when it is empty. */
function lastBox(text: string): string | null {
  const boxed = text.lastIndexOf('\\boxed');
  const start = boxed < 0 ? text.lastIndexOf('\\fbox') : boxed;
  const box = start < 0 ? null : balanced(text, start);
  return box === null ? null : strip(box.slice(box.indexOf('{') + 1, -1)) || null;
}

/** Up to the end of the line; one within \begin and \end, as of a matrix, does not count. */
function firstLine(text: string): string {
  let depth = 0;
  for (const { 0: mark, index } of text.matchAll(/\n|\\begin\{|\\end\{/g)) {
    if (mark !== '\n') depth += mark === '\\begin{' ? 1 : -1;
    else if (depth <= 0) return text.slice(0, index);
  }
  return depth > 0 ? (text.split('\n', 1)[0] as string) : text;
}

/**
 * The answer of a response: what its last box holds after the last "answer:", "answer is" or "answers are", or before "is the answer"; else
 * the rest of that line, without a period at its end, if it has a digit or there is no box; else the last box anywhere; else the whole text.
 * null when that is empty.
 */
export function extractAnswer(text: string): string | null {
  let from = -1;
  for (const { 0: mark, index } of text.matchAll(BEFORE)) from = index + mark.length;
  let rest = from < 0 ? text : strip(text.slice(from));
  let to = -1;
  for (const { index } of rest.matchAll(AFTER)) to = index;
  if (to >= 0) rest = strip(rest.slice(0, to));
  const box = lastBox(rest);
  if (box !== null) return box;
  if (from < 0) return lastBox(text) ?? (strip(rest) || null);
  const line = strip(firstLine(rest));
  const answer = strip(line.endsWith('.') ? line.slice(0, -1) : line) || null;
  return answer !== null && /\d/.test(answer) ? answer : (lastBox(text) ?? answer);
}

/** What an answer says at its end: up to its last period, after the last "is", "=", "get" and the like. */
export function conclusion(answer: string): string {
  const period = answer.lastIndexOf('. ');
  let text = period < 0 ? answer : strip(answer.slice(0, period));
  // Other letters may have another length in lower case.
  let lower = text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
  for (const lead of LEADS) {
    const at = lower.lastIndexOf(lead);
    if (at < 0) continue;
    text = strip(text.slice(at + lead.length));
    lower = strip(lower.slice(at + lead.length));
  }
  return text;
}

const SYMBOLS: Readonly<Record<string, string>> = {
  '∅': '\\emptyset ',
  '\\varnothing': '\\emptyset ',
  '∞': '\\infty ',
  '∪': '\\cup ',
  '°': '^\\circ ',
};

/** An answer with commas for "and" and "or", also where they are text of LaTeX, whose rest the rules of MATH would take for a unit. */
export const listed = (text: string): string =>
  text.replace(/\\(?:text|mbox|mathrm)\{\s*(?:or|and)\s*\}/gi, ' , ').replace(/ (?:or|and) /gi, ' , ');

/** Without the pairs of braces around all of it, which group nothing; braces that do not close are left alone. One pass. */
export function ungrouped(text: string): string {
  const inner = strip(text);
  let first = 0;
  while (inner[first] === '{') first++;
  let last = inner.length;
  while (last > first && inner[last - 1] === '}') last--;
  let depth = first;
  let pairs = Math.min(first, inner.length - last);
  for (let i = first; i < last; i++) {
    if (inner[i] === '{') depth++;
    else if (inner[i] === '}') pairs = Math.min(pairs, --depth);
  }
  const closes = pairs > 0 && depth === inner.length - last;
  return closes ? strip(inner.slice(pairs, inner.length - pairs)) : inner;
}

/** A whole answer in words, or in another font. */
const WORDS = /^\\(?:text|mbox|mathrm|mathbf|mathit|textbf|textit|boldsymbol)\{((?:[^{}]|\{[^{}]*\})*)\}$/;
/** Units, which may have an exponent; not the ends of other words (Monday), nor the names of LaTeX commands. */
const UNITS =
  /(?<![a-zA-Z\\])(?:degree|cm|(?:centi|kilo|milli)?meter|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard|liter)(?:es)?s?(?![a-zA-Z]) *(?:\^\d+)?/g;
/** The end of a row, with the space below it. */
const ROW_END = /\\\\ *\[-?[\d.]+ *(?:pt|em|ex|mm|cm)\]/g;
const LARGE = { million: 6, billion: 9, trillion: 12 };
const LOOKS =
  /\\(?:text|mbox|mathrm)\{[^{}]*\}(?: *\^ *(?:\d|\{\d+\}))?|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|(?<!\\)\\[,;:!%$ ()[\]]|\\(?:boxed|fbox)(?![a-zA-Z])|\^ *\{?\\circ\}?|\\degree(?![a-zA-Z])|[$%]/g;

/**
 * An answer without what changes the looks only: math mode, sizes, spacing, units, degree, per cent, dollar. Mixed numbers
 * are written as fractions, "million" as a power of ten, "or" and "and" as a comma.
 */
export function tidy(text: string): string {
  let bare = text.trim().replace(/^(?:\$+|\\[([])|(?<!\\)(?:\$+|\\[)\]]?)$/g, '');
  while (WORDS.test(bare)) bare = bare.replace(WORDS, '$1');
  bare = listed(bare)
    .replace(/[∅∞∪°]|\\varnothing(?![a-zA-Z])/g, (symbol) => SYMBOLS[symbol] as string)
    .replace(ROW_END, '\\\\')
    .replace(/\\overline *(\d)(?!\d)/g, '\\overline{$1}')
    .replace(/(?<=\d),\\! *(?=\d)/g, '')
    .replace(LOOKS, ' ')
    .replace(/(million|billion|trillion)/g, (name) => `\\times 10^{${LARGE[name as keyof typeof LARGE]}}`)
    .replace(UNITS, ' ')
    .replace(/\\[dt]frac(?![a-zA-Z])/g, '\\frac')
    .replace(/(?<![\d.])(\d+) +(\d+)\/(\d+)(?![\d.])/g, '$1\\frac{$2}{$3}')
    .replace(/\\([{}])/g, (_, brace: string) => (brace === '{' ? '\\lbrace ' : '\\rbrace '))
    .trim();
  return /^[-+]?\d{1,3}(,\d{3})+(\.\d*)?$/.test(bare) ? bare.replaceAll(',', '') : bare;
}

const LETTERS_ONLY = /^[\p{L}\s'-]+$/u;

const hasBothCases = (text: string): boolean =>
  [...text].some((letter) => letter !== letter.toLowerCase() && text.includes(letter.toLowerCase()));

/**
 * Equal as texts in the form of {@link tidy}, spaces aside but for those between two words or numbers. The case of letters does
 * not count, but in a formula that has a letter in both cases, which means two things by it.
 */
export function sameText(first: string, second: string): boolean {
  const [a, b] = [first, second].map((text) =>
    tidy(text)
      .replace(/\s+/g, ' ')
      .replace(/(?<!\w) | (?!\w)/g, ''),
  ) as [string, string];
  if (a === b || a === '') return a !== '';
  if (a.toLowerCase() !== b.toLowerCase()) return false;
  return LETTERS_ONLY.test(a) || !(hasBothCases(a) || hasBothCases(b));
}
