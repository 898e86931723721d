import type {
  AdvantageConfig,
  AdvantageEstimator,
  AdvantageInputs,
  AdvantageResult,
} from '../../../ts/algorithms/advantage_types';
import {
  computeAdvantages,
  computeAdvantagesDouble,
  registerAdvantageEstimator,
} from '../../../ts/algorithms/advantages';
import { Batch } from '../../../ts/batch/batch';
import { TroupeError } from '../../../ts/errors';

describe('registry', () => {
  const inputs: AdvantageInputs = { offsets: [0, 2], responseMask: [1, 1], tokenRewards: [0, 1], uid: [0] };

  test('takes a function of the user, once per name', () => {
    const estimator = (i: AdvantageInputs) => ({ advantages: i.tokenRewards, returns: i.tokenRewards });
    registerAdvantageEstimator('mine', estimator);
    registerAdvantageEstimator('mine', estimator);
    expect([...computeAdvantagesDouble('mine', inputs).advantages]).toEqual([0, 1]);
    expect(() => registerAdvantageEstimator('mine', () => estimator(inputs))).toThrow(/already registered/);
    expect(() => registerAdvantageEstimator('grpo', estimator)).toThrow(/already registered/);
  });

  test('an estimator sees its options and the batch, which must have what it needs', () => {
    const bySource: AdvantageEstimator = ({ tokenRewards, batch }, { kwargs }) => {
      const factors = kwargs?.['factors'] as Record<string, number>;
      const sources = batch?.get('dataSource') as string[];
      const hard = batch?.get('extraInfo') as { hard: boolean }[];
      const column = Array.from(tokenRewards, (reward, i) =>
        hard[i]?.hard ? (factors[sources[i] as string] as number) * reward : reward,
      );
      return { advantages: column, returns: column };
    };
    registerAdvantageEstimator('by source', bySource, { needs: ['extraInfo', 'refLogProbs'] });
    const columns = { tokenRewards: [1, 2], uid: ['a', 'b'], dataSource: ['x', 'y'], refLogProbs: [-1, -1] };
    const batch = Batch.fromSequences([[1], [1]], [[2], [3]], columns);
    const config = { kwargs: { factors: { x: 10, y: 100 } } };
    expect(() => computeAdvantages('by source', batch, config)).toThrow(
      "[advantages] estimator 'by source' was registered with needs extraInfo, which the batch does not have",
    );
    const extraInfo = [{ hard: false }, { hard: true }];
    const whole = batch.with({ extraInfo }, { granularity: { extraInfo: 'sequence' } });
    expect([...computeAdvantages('by source', whole, config).advantages]).toEqual([1, 200]);
    expect(() => computeAdvantages('grpo', whole, config)).toThrow(
      'kwargs: only an estimator from registerAdvantageEstimator reads them',
    );
  });

  test.each<[string, unknown, RegExp]>([
    ['nothing', undefined, /must return { advantages, returns } at once, but returned undefined/],
    ['promise', Promise.resolve(), /but returned a promise/],
    ['no_returns', { advantages: [1, 2] }, /expected returns with 2 entries, .* but got undefined/],
    ['short', { advantages: [1], returns: [1] }, /expected advantages with 2 entries, .* but got 1 entries/],
    [
      'nan',
      { advantages: [1, Number.NaN], returns: [1, 2] },
      /NaN in advantages\[1\] \(sequence 0, response/,
    ],
  ])('refuses an estimator that returns %s', (name, returned, message) => {
    registerAdvantageEstimator(name, () => returned as AdvantageResult);
    expect(() => computeAdvantagesDouble(name, inputs)).toThrow(TroupeError);
    expect(() => computeAdvantagesDouble(name, inputs)).toThrow(message);
  });

  test('names the estimator that throws, and refuses what is no function', () => {
    registerAdvantageEstimator('throws', () => {
      throw new Error('boom');
    });
    expect(() => computeAdvantagesDouble('throws', inputs)).toThrow(
      /estimator 'throws' threw: boom, at .*advantage_registry\.test\.ts:\d+$/,
    );
    expect(() => registerAdvantageEstimator('five', 5 as never)).toThrow(/expected a function for 'five'/);
  });

  test('refuses options that do not exist or are of another kind', () => {
    const normAdvByStd = { normAdvByStd: false } as AdvantageConfig;
    expect(() => computeAdvantagesDouble('grpo', inputs, normAdvByStd)).toThrow(/mean 'normAdvByStdInGrpo'/);
    const gamma = { gamma: 'x' } as unknown as AdvantageConfig;
    expect(() => computeAdvantagesDouble('gae', inputs, gamma)).toThrow(
      /gamma: expected a number but got "x"/,
    );
  });

  test('refuses rewards that are not finite, naming the sequence', () => {
    const two = { offsets: [0, 1, 2], responseMask: [1, 1], uid: ['p', 'p'], tokenRewards: [1, Number.NaN] };
    expect(() => computeAdvantagesDouble('grpo', two)).toThrow(/sequence 1 has none.* add up to NaN/);
    expect(() => computeAdvantagesDouble('reinforce_plus_plus', two)).toThrow(/their variance is NaN/);
    const components = { ...two, tokenRewards: [0, 0], rewardComponents: { a: [Number.NaN, 1] } };
    expect(() => computeAdvantagesDouble('gdpo', components)).toThrow(/sequence 0 has none: 'a' is NaN/);
  });

  test('names the estimator or column that is missing', () => {
    expect(() => computeAdvantagesDouble('nope', inputs)).toThrow(/unknown advantage estimator 'nope'.*grpo/);
    expect(() => computeAdvantagesDouble('gae', inputs)).toThrow(/'gae' needs the column 'values'/);
    expect(() => computeAdvantagesDouble('grpo_passk', inputs)).toThrow(/rollout\.n/);
    expect(() => computeAdvantagesDouble('grpo', { ...inputs, responseMask: [1] })).toThrow(
      /expected 2 entries/,
    );
  });
});
