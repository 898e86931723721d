import { availableParallelism } from 'node:os';
import { boundsItself } from '../contract/bounded';
import type { RewardSample } from '../contract/types';
import { ScorerPool } from '../scorers/scorer_pool';
import { SCORER_VARIABLE } from '../scorers/scorer_protocol';
import { balanced } from './boxed';
import { isEquivalent } from './math';
import { strip } from './python_text';
import { symbolicallyEqual } from './symbolic_equal';

const TIMEOUT_MS = 10_000;
const MEMORY_MB = 512;
/** Without work for so long, the processes end. */
const IDLE_MS = 30_000;
/** Longer answers are compared as texts only. */
const MAX_LENGTH = 500;

const MARK = /answer(?:(?: is| are):?|:)/gi;

/**
 * The last `\boxed{...}` or `\fbox{...}`, else the rest of the line after the last "answer:", "answer is" or "answer are",
 * without a period at its end; null without either.
 */
export function extractAnswer(text: string): string | null {
  const start = Math.max(text.lastIndexOf('\\boxed{'), text.lastIndexOf('\\fbox{'));
  const box = start < 0 ? null : balanced(text, start);
  if (box !== null) return strip(box.slice(box.indexOf('{') + 1, -1));
  let from = -1;
  for (const { 0: mark, index } of text.matchAll(MARK)) from = index + mark.length;
  if (from < 0) return null;
  const line = strip(text.slice(from).split('\n', 1)[0] as string);
  return strip(line.endsWith('.') ? line.slice(0, -1) : line) || null;
}

/** prime_math with its processes, which start when there is something to compare and end with `close`, or without work. */
export class PrimeMath {
  readonly #pool = new ScorerPool(availableParallelism(), { kind: 'symbolic' }, MEMORY_MB, IDLE_MS);

  /** See {@link scorePrimeMath}. */
  async score(response: string, groundTruth: string): Promise<number> {
    const answer = extractAnswer(response);
    if (answer === null) return 0;
    if (isEquivalent(answer, groundTruth)) return 1;
    if (answer.length > MAX_LENGTH || groundTruth.length > MAX_LENGTH) return 0;
    // A scorer process of the manager prime is killed at its own time-out.
    const inScorer = process.env[SCORER_VARIABLE] !== undefined;
    const equal = inScorer
      ? symbolicallyEqual(answer, groundTruth)
      : await this.#isolated(answer, groundTruth);
    return equal ? 1 : 0;
  }

  /** {@link score}. Each comparison is bounded, and standing in line for one is not failing. */
  readonly reward = ({ response, groundTruth }: RewardSample): Promise<number> =>
    boundsItself(this.score(response, String(groundTruth)));

  close(): void {
    this.#pool.close();
  }

  /** A comparison that takes too long, or too much memory, or fails: not equal. */
  #isolated(answer: string, truth: string): Promise<boolean> {
    return this.#pool.run({ answer, truth }, TIMEOUT_MS).then(
      (equal) => equal === true,
      () => false,
    );
  }
}

/** Of whoever calls the function itself: a run has its own. */
const shared = new PrimeMath();

/**
 * Mathematical equality, in the style of verl's prime_math: 1 when the extracted answer equals the ground truth in the
 * normal form of MATH or symbolically (see {@link symbolicallyEqual}), else 0. The computer algebra runs in processes of
 * its own with 10 s and 512 MB for each comparison; one that needs more counts as not equal.
 */
export async function scorePrimeMath(response: string, groundTruth: string): Promise<number> {
  return await shared.score(response, groundTruth);
}

/** {@link scorePrimeMath} as a reward function. */
export const primeMath = shared.reward;
