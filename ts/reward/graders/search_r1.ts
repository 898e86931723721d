import {
  checkOptionNames,
  choiceOption,
  numberOption,
  requireText,
  requireTexts,
} from '../../base/check_options';
import type { RewardSample } from '../contract/types';
import { splitWhiteSpace, strip, WORD } from './python_text';

const [OPEN, CLOSE] = ['<answer>', '</answer>'];
/** More tags than that look like an attempt to hit by number. */
const MAX_TAGS = 10;

/** string.punctuation */
const PUNCTUATION = /[!-/:-@[-`{-~]/g;
const ARTICLES = new RegExp(`(?<![${WORD}])(?:a|an|the)(?![${WORD}])`, 'gu');

/** SQuAD's normal form of an answer: lower case, no punctuation (ASCII), no articles, single spaces. */
export function normalizeAnswer(text: string): string {
  const bare = text.toLowerCase().replace(PUNCTUATION, '').replace(ARTICLES, ' ');
  return splitWhiteSpace(bare).join(' ');
}

/** The last `<answer>...</answer>`, pairs taken from the left; null when there is none. */
function lastAnswer(text: string): string | null {
  let answer: string | null = null;
  let position = 0;
  for (;;) {
    const start = text.indexOf(OPEN, position);
    const end = start < 0 ? -1 : text.indexOf(CLOSE, start + OPEN.length);
    if (end < 0) return answer === null ? null : strip(answer);
    answer = text.slice(start + OPEN.length, end);
    position = end + CLOSE.length;
  }
}

export interface SearchR1Options {
  /** exact: the answer equals a target; substring: it contains one. */
  match?: 'exact' | 'substring';
  /** Score of a wrong answer in the right form. 0 */
  formatScore?: number;
  /** Score of the right answer. 1 */
  score?: number;
}

/**
 * The rule score of Search-R1 (Jin et al. 2025, arXiv 2503.09516): `score` when the last answer matches a target in
 * SQuAD's normal form, `formatScore` when it does not, 0 without an answer. An exact match among more than 10 opening
 * or closing answer tags gets a quarter of `score`.
 */
export function scoreSearchR1(
  response: string,
  targets: string | readonly string[],
  options: SearchR1Options = {},
): number {
  const where = 'scoreSearchR1';
  requireText(where, 'response', response);
  if (typeof targets !== 'string') requireTexts(where, 'targets', targets);
  checkOptionNames(where, options, ['match', 'formatScore', 'score']);
  choiceOption(where, 'match', options.match, ['exact', 'substring'], 'exact');
  numberOption(where, 'formatScore', options.formatScore, 0);
  numberOption(where, 'score', options.score, 1);
  const { match = 'exact', formatScore = 0, score = 1 } = options;
  const answer = lastAnswer(response);
  if (answer === null) return 0;
  const given = normalizeAnswer(answer);
  const accepted = (typeof targets === 'string' ? [targets] : targets).map(normalizeAnswer);
  const substring = match === 'substring';
  if (!accepted.some((target) => (substring ? given.includes(target) : given === target))) return formatScore;
  const count = (tag: string): number => response.split(tag).length - 1;
  return !substring && Math.max(count(OPEN), count(CLOSE)) > MAX_TAGS ? score / 4 : score;
}

/** `{ target }` as Search-R1's data has it, or the target or targets themselves. */
function targetsOf(groundTruth: unknown): string[] {
  const target =
    typeof groundTruth === 'object' && groundTruth !== null && 'target' in groundTruth
      ? groundTruth.target
      : groundTruth;
  return (Array.isArray(target) ? target : [target]).map(String);
}

/** {@link scoreSearchR1}, exact. */
export const searchR1 = ({ response, groundTruth }: RewardSample): number =>
  scoreSearchR1(response, targetsOf(groundTruth));

/** {@link scoreSearchR1}, substring. */
export const searchR1Substring = ({ response, groundTruth }: RewardSample): number =>
  scoreSearchR1(response, targetsOf(groundTruth), { match: 'substring' });
