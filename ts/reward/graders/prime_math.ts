import { availableParallelism } from 'node:os';
import { requireText } from '../../base/check_options';
import { boundsItself } from '../contract/bounded';
import type { RewardSample } from '../contract/types';
import { ScorerPool } from '../scorers/scorer_pool';
import { SCORER_VARIABLE } from '../scorers/scorer_protocol';
import { isEquivalent } from './math';
import { conclusion, extractAnswer, listed, sameText, ungrouped } from './prime_answer';
import { symbolicallyEqual } from './symbolic_equal';

const TIMEOUT_MS = 10_000;
const MEMORY_MB = 512;
/** Without work for so long, the processes end. */
const IDLE_MS = 30_000;
/** Longer answers are compared as texts only. */
const MAX_LENGTH = 500;

/** prime_math with its processes, which start when there is something to compare and end with `close`, or without work. */
export class PrimeMath {
  readonly #pool = new ScorerPool(availableParallelism(), { kind: 'symbolic' }, MEMORY_MB, IDLE_MS);

  /** See {@link scorePrimeMath}. */
  async score(response: string, groundTruth: string): Promise<number> {
    const answer = ungrouped(extractAnswer(response) ?? '');
    if (answer === '') return 0;
    const truth = listed(ungrouped(groundTruth));
    for (const reading of new Set([answer, ungrouped(conclusion(answer))].map(listed)))
      if (await this.#equal(truth, reading)) return 1;
    return 0;
  }

  /** {@link score}. Each comparison is bounded, and standing in line for one is not failing. */
  readonly reward = ({ response, groundTruth }: RewardSample): Promise<number> =>
    boundsItself(this.score(response, String(groundTruth)));

  close(): void {
    this.#pool.close();
  }

  async #equal(truth: string, answer: string): Promise<boolean> {
    if (isEquivalent(answer, truth)) return true;
    if (answer.length > MAX_LENGTH || truth.length > MAX_LENGTH) return false;
    if (sameText(answer, truth)) return true;
    // A scorer process of the manager prime is killed at its own time-out.
    const inScorer = process.env[SCORER_VARIABLE] !== undefined;
    return inScorer ? symbolicallyEqual(answer, truth) : await this.#isolated(answer, truth);
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
 * Mathematical equality, in the style of verl's prime_math: 1 when the extracted answer, or what it concludes, equals the ground
 * truth in the normal form of MATH, as text or symbolically (see {@link symbolicallyEqual}), else 0. The computer algebra runs
 * in processes of its own with 10 s and 512 MB for each comparison; one that needs more counts as not equal.
 */
export async function scorePrimeMath(response: string, groundTruth: string): Promise<number> {
  requireText('scorePrimeMath', 'response', response);
  requireText('scorePrimeMath', 'groundTruth', groundTruth);
  return await shared.score(response, groundTruth);
}

/** {@link scorePrimeMath} as a reward function. */
export const primeMath = shared.reward;
