import { checkOptionNames, flagOption, requireText } from '../../base/check_options';
import type { RewardSample } from '../contract/types';
import { lastBoxed } from './boxed';
import { isDigits, lastCodePoints, replaceText, strip, WHITE_SPACE } from './python_text';

/** Only the end of an answer is searched, as in verl: bounded time on megabytes of text. */
const TAIL = 300;
const BOX_TAIL = 100;
const ANSWER = new RegExp(`Answer[${WHITE_SPACE}]*:[${WHITE_SPACE}]*([^\\n]+)`, 'giu');
const NO_ANSWER = '[INVALID]';

// The two lists of Minerva's answer normalisation (Lewkowycz et al. 2022, arXiv 2206.14858, appendix D), less its
// unit "ft", which would break \left: verl's lists.
const REWRITES: readonly (readonly [string, string])[] = [
  ['an ', ''],
  ['a ', ''],
  ['.$', '$'],
  ['\\$', ''],
  ['\\ ', ''],
  [' ', ''],
  ['mbox', 'text'],
  [',\\text{and}', ','],
  ['\\text{and}', ','],
  ['\\text{m}', '\\text{}'],
];
const REMOVED: readonly string[] = (
  'square ways integers dollars mph inches hours km units \\ldots sue points feet minutes digits cents degrees cm gm ' +
  'pounds meters meals edges students childrentickets multiples \\text{s} \\text{.} \\text{\ns} \\text{}^2 \\text{}^3 ' +
  '\\text{\n} \\text{} \\mathrm{th} ^\\circ ^{\\circ} \\; ,\\! {,} " \\dots'
).split(' ');

/** Per line, since no rule here reaches over a line's end. */
const eachLine = (text: string, rewrite: (line: string) => string): string =>
  text.split('\n').map(rewrite).join('\n');

/** Of a line with two dollar signs only what is between them, with the signs. */
function betweenDollars(line: string): string {
  const first = line.indexOf('$');
  const second = line.indexOf('$', first + 1);
  return first < 0 || second < 0 ? line : line.slice(first, second + 1);
}

/** `opener...}` becomes `...`, up to the nearest closing brace. */
function unwrapped(line: string, opener: string): string {
  let result = '';
  let position = 0;
  for (;;) {
    const start = line.indexOf(opener, position);
    const end = start < 0 ? -1 : line.indexOf('}', start + opener.length);
    if (end < 0) return result + line.slice(position);
    result += line.slice(position, start) + line.slice(start + opener.length, end);
    position = end + 1;
  }
}

/** The first `\boxed{...}` becomes `...`, up to the last closing brace. */
function unboxed(line: string): string {
  const start = line.indexOf('\\boxed{');
  const inner = start + '\\boxed{'.length;
  const end = line.lastIndexOf('}');
  return start < 0 || end < inner
    ? line
    : line.slice(0, start) + line.slice(inner, end) + line.slice(end + 1);
}

/** A final answer in Minerva's normal form. */
export function normalizeFinalAnswer(answer: string): string {
  let text = answer.slice(answer.lastIndexOf('=') + 1);
  for (const [from, to] of REWRITES) text = replaceText(text, from, to);
  for (const expression of REMOVED) text = replaceText(text, expression, '');
  text = eachLine(text, betweenDollars);
  for (const opener of ['\\text{', '\\textbf{', '\\overline{']) {
    text = eachLine(text, (line) => unwrapped(line, opener));
  }
  text = eachLine(text, unboxed);
  text = text.replace(/frac([^{])([^\n])/gu, 'frac{$1}{$2}').replace(/sqrt([^{])/gu, 'sqrt{$1}');
  text = text.replaceAll('$', '');
  const number = text.replaceAll(',', '');
  return strip(isDigits(number) ? number : text);
}

export interface MathDapoOptions {
  /** Only a last `\boxed{...}` within the last 100 characters counts, and it must equal the ground truth as text. */
  strictBox?: boolean;
}

/** `score` 1 or -1; `acc` whether it is right; `pred` the answer that was read, null when strict finds no box. */
export interface MathDapoScore extends Record<string, unknown> {
  score: number;
  acc: boolean;
  pred: string | null;
}

/** The last `\boxed{...}` of what lies within the last 100 characters. */
const boxAtEnd = (tail: string): string | null => lastBoxed(lastCodePoints(tail, BOX_TAIL));

/**
 * The rule score of DAPO (Yu et al. 2025, arXiv 2503.14476) over the last 300 characters: the line after the last
 * "Answer:" against the ground truth, both in Minerva's normal form; without one the last `\boxed{...}` of the last 100,
 * which must equal the ground truth as text.
 */
export function scoreMathDapo(
  response: string,
  groundTruth: string,
  options: MathDapoOptions = {},
): MathDapoScore {
  requireText('scoreMathDapo', 'response', response);
  requireText('scoreMathDapo', 'groundTruth', groundTruth);
  checkOptionNames('scoreMathDapo', options, ['strictBox']);
  flagOption('scoreMathDapo', 'strictBox', options.strictBox, false);
  const tail = lastCodePoints(response, TAIL);
  const box = boxAtEnd(tail);
  const boxed: MathDapoScore = { score: box === groundTruth ? 1 : -1, acc: box === groundTruth, pred: box };
  if (options.strictBox) return boxed;
  const pred = normalizeFinalAnswer([...tail.matchAll(ANSWER)].at(-1)?.[1] ?? NO_ANSWER);
  if (pred === NO_ANSWER && box !== null) return boxed;
  const acc = pred === normalizeFinalAnswer(groundTruth);
  return { score: acc ? 1 : -1, acc, pred };
}

/** {@link scoreMathDapo}. */
export const mathDapo = ({ response, groundTruth }: RewardSample): MathDapoScore =>
  scoreMathDapo(response, String(groundTruth));
