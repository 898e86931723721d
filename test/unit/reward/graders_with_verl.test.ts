import { scoreGsm8k } from '../../../ts/reward/graders/gsm8k';
import { scoreMathDapo } from '../../../ts/reward/graders/math_dapo';
import { scoreRlla } from '../../../ts/reward/graders/rlla';
import { type SearchR1Options, scoreSearchR1 } from '../../../ts/reward/graders/search_r1';
import { rewardFunction } from '../../../ts/reward/reward';
import {
  camelled,
  describeWithVerl,
  drawnByVerl,
  expectAllAgree,
  type VerlCase,
} from '../../helpers/verl_cases';
import { sample } from './sample';

// Rule scorers on random texts against verl's own (test/fixtures/random_verl), all but prime_math: scores and what comes with them are equal.

interface GraderCase extends VerlCase {
  name: string;
  /** Absent with options, and of rlla, which verl has no source for. */
  source?: string;
  response: string;
  truth: string | { target: string | string[] };
  options: Record<string, unknown> | null;
  expected: unknown;
}

const WITH_OPTIONS: Readonly<Record<string, (drawn: GraderCase, options: object) => unknown>> = {
  gsm8k: ({ response, truth }, options) => scoreGsm8k(response, truth as string, options),
  math_dapo: ({ response, truth }, options) => scoreMathDapo(response, truth as string, options),
  search_r1: ({ response, truth }, options: SearchR1Options) =>
    scoreSearchR1(response, (truth as { target: string | string[] }).target, options),
  rlla: ({ response, truth }) => scoreRlla(response, truth as string),
};

const ours = async (drawn: GraderCase): Promise<unknown> => {
  const { name, source, response, truth, options } = drawn;
  if (source === undefined) return WITH_OPTIONS[name]?.(drawn, camelled(options ?? {}));
  return rewardFunction(source)(sample(response, { groundTruth: truth, dataSource: source }));
};

describeWithVerl('as verl scores it', () => {
  let drawn: GraderCase[];
  beforeAll(() => {
    drawn = drawnByVerl<{ graders: GraderCase }>(1000, ['graders']).graders;
  });

  test.each(['gsm8k', 'math', 'math_dapo', 'search_r1', 'rlla'])('%s', async (wanted) => {
    await expectAllAgree(
      drawn.filter(({ name }) => name === wanted),
      async (one) => {
        if (one.error !== undefined) return [one.error];
        const [actual, expected] = [await ours(one), one.expected].map((score) => JSON.stringify(score));
        return actual === expected
          ? []
          : [`${JSON.stringify(one.response)} is ${actual} in place of ${expected}`];
      },
    );
  });
});
