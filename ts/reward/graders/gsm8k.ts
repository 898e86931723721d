import { checkOptionNames, choiceOption, numberOption, requireText } from '../../base/check_options';
import type { RewardSample } from '../contract/types';
import { lastCodePoints } from './python_text';

/** Only the end of an answer is searched: bounded time on megabytes of text. */
const TAIL = 300;

export interface Gsm8kOptions {
  /** strict: the number after the last "#### "; flexible: the last number-like token. */
  method?: 'strict' | 'flexible';
  /** Score of a wrong answer in the right form. 0 */
  formatScore?: number;
  /** Score of the right answer. 1 */
  score?: number;
}

function strictAnswer(tail: string): string | null {
  const found = [...tail.matchAll(/#### (-?[0-9.,]+)/g)].at(-1)?.[1];
  return found?.replaceAll(',', '') ?? null;
}

function flexibleAnswer(tail: string): string | null {
  const numbers = tail.match(/-?[0-9.,]+/g);
  return numbers?.findLast((number) => number !== '.') ?? numbers?.[0] ?? null;
}

/**
 * The GSM8K rule score: `score` when the answer equals the ground truth as text, `formatScore` when there is an
 * answer but another one, 0 when there is none. Flexible answers keep their thousands commas, as in verl.
 */
export function scoreGsm8k(response: string, groundTruth: string, options: Gsm8kOptions = {}): number {
  requireText('scoreGsm8k', 'response', response);
  requireText('scoreGsm8k', 'groundTruth', groundTruth);
  checkOptionNames('scoreGsm8k', options, ['method', 'formatScore', 'score']);
  choiceOption('scoreGsm8k', 'method', options.method, ['strict', 'flexible'], 'strict');
  numberOption('scoreGsm8k', 'formatScore', options.formatScore, 0);
  numberOption('scoreGsm8k', 'score', options.score, 1);
  const tail = lastCodePoints(response, TAIL);
  const answer = options.method === 'flexible' ? flexibleAnswer(tail) : strictAnswer(tail);
  if (answer === null) return 0;
  return answer === groundTruth ? (options.score ?? 1) : (options.formatScore ?? 0);
}

/** {@link scoreGsm8k}, strict. */
export const gsm8k = ({ response, groundTruth }: RewardSample): number =>
  scoreGsm8k(response, String(groundTruth));
