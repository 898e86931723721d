import { requireText } from '../../base/check_options';
import type { RewardSample } from '../contract/types';
import { balanced } from './boxed';
import { firstCodePoint, replaceText } from './python_text';

const SPACED = '\\boxed ';

/**
 * The answer in the last box: `\boxed{...}` with its braces balanced, or, when `\boxed ` with a space occurs anywhere,
 * what follows the last of those up to a `$`. null when there is none. A last `\fbox` counts as none, as in verl.
 */
export function lastBoxedAnswer(text: string): string | null {
  const spaced = text.lastIndexOf(SPACED);
  if (spaced >= 0) return text.slice(spaced + SPACED.length).split('$', 1)[0] as string;
  const start = text.lastIndexOf('\\boxed');
  const box = start < 0 ? null : balanced(text, start);
  return box?.startsWith('\\boxed{') ? box.slice('\\boxed{'.length, -1) : null;
}

/** Replaced in this order. */
const REWRITES: readonly (readonly [string, string])[] = [
  ['\n', ''],
  ['\\!', ''],
  ['\\\\', '\\'],
  ['tfrac', 'frac'],
  ['dfrac', 'frac'],
  ['\\left', ''],
  ['\\right', ''],
  ['^{\\circ}', ''],
  ['^\\circ', ''],
  ['\\$', ''],
];

/** A text that the rules cannot read: it is compared as it stands. */
class Unreadable extends Error {}

function withoutUnits(text: string): string {
  const parts = text.split('\\text{ ');
  if (parts.length > 2) throw new Unreadable();
  return parts[0] as string;
}

/** `\sqrt3` becomes `\sqrt{3}`. */
function bracedRoots(text: string): string {
  const [head, ...parts] = text.split('\\sqrt') as [string, ...string[]];
  const fixed = parts.map((part) => {
    if (part === '') throw new Unreadable();
    if (part.startsWith('{')) return `\\sqrt${part}`;
    const first = firstCodePoint(part);
    return `\\sqrt{${first}}${part.slice(first.length)}`;
  });
  return head + fixed.join('');
}

/** `\frac12` becomes `\frac{1}{2}`, `\frac1{2}` too; when one of them lacks its second argument all stay as they are. */
function bracedFractions(text: string): string {
  const [head, ...parts] = text.split('\\frac') as [string, ...string[]];
  const fixed: string[] = [];
  for (const part of parts) {
    if (part === '') throw new Unreadable();
    const numerator = firstCodePoint(part);
    const rest = part.slice(numerator.length);
    const denominator = firstCodePoint(rest);
    if (numerator === '{') fixed.push(`\\frac${part}`);
    else if (denominator === '') return text;
    else if (denominator === '{') fixed.push(`\\frac{${numerator}}${rest}`);
    else fixed.push(`\\frac{${numerator}}{${denominator}}${rest.slice(denominator.length)}`);
  }
  return head + fixed.join('');
}

/** Integers as Python prints them; longer ones it refuses to read. */
const INTEGER = '(0|-?[1-9][0-9]{0,4299})';
const SLASH = new RegExp(`^${INTEGER}/${INTEGER}$`);

/**
 * A LaTeX answer in the normal form of the MATH data set (Hendrycks et al. 2021, arXiv 2103.03874).
 * @throws Error for what the rules cannot read, such as `\sqrt` without an argument
 */
export function normalizeMath(answer: string): string {
  let text = answer;
  for (const [from, to] of REWRITES) text = replaceText(text, from, to);
  text = withoutUnits(text);
  text = replaceText(text, '\\\\%', '');
  text = replaceText(text, '\\%', '');
  text = replaceText(text, ' .', ' 0.');
  text = replaceText(text, '{.', '{0.');
  if (text === '') return text;
  if (text.startsWith('.')) text = `0${text}`;
  const sides = text.split('=');
  if (sides.length === 2 && [...(sides[0] as string).slice(0, 5)].length <= 2) text = sides[1] as string;
  text = bracedRoots(text);
  text = replaceText(text, ' ', '');
  text = bracedFractions(text);
  if (text === '0.5') return '\\frac{1}{2}';
  return text.replace(SLASH, '\\frac{$1}{$2}');
}

/** Equal in the normal form, or, when the rules cannot read one of them, as texts. */
export function isEquivalent(first: string, second: string): boolean {
  try {
    return normalizeMath(first) === normalizeMath(second);
  } catch (error) {
    if (!(error instanceof Unreadable)) throw error;
    return first === second;
  }
}

/** The MATH rule score: 1 when the last boxed answer is equivalent to the ground truth, else 0. */
export function scoreMath(response: string, groundTruth: string): number {
  requireText('scoreMath', 'response', response);
  requireText('scoreMath', 'groundTruth', groundTruth);
  const answer = lastBoxedAnswer(response);
  return answer !== null && isEquivalent(answer, groundTruth) ? 1 : 0;
}

/** {@link scoreMath}. */
export const math = ({ response, groundTruth }: RewardSample): number =>
  scoreMath(response, String(groundTruth));
