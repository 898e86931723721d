import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { AdvantageConfig, AdvantageInputs } from '../../ts/algorithms/advantage_types';
import { computeAdvantagesDouble, registerAdvantageEstimator } from '../../ts/algorithms/advantages';
import { maskedMean, maskedVar, maskedWhiten } from '../../ts/algorithms/masked';

type Matrix = number[][];

interface Fixture {
  inputs: Record<string, Matrix> & { uid: string[] };
  params: { advantage: Record<string, Record<string, unknown>> };
  advantage: Record<string, { adv: Matrix; ret: Matrix }>;
  helpers: Record<string, unknown>;
  egpo: {
    inputs: Record<string, Matrix> & { uid: string[] };
    cases: { lambda: number; alpha: number; norm_adv_by_std_in_grpo: boolean; adv: Matrix }[];
  };
}

const fixture: Fixture = JSON.parse(
  readFileSync(join(__dirname, '../fixtures/conformance/core_head.json'), 'utf8'),
);

const flat = (matrix: Matrix): Float64Array => Float64Array.from(matrix.flat());

function inputsOf(source: Fixture['inputs'], rows: number[], rewards: string): AdvantageInputs {
  const column = (name: string): Float64Array =>
    flat(rows.map((row) => (source[name] as Matrix)[row] as number[]));
  const width = ((source['mask'] as Matrix)[0] as number[]).length;
  return {
    offsets: Array.from({ length: rows.length + 1 }, (_, i) => i * width),
    responseMask: column('mask'),
    tokenRewards: column(rewards),
    uid: rows.map((row) => source.uid[row]),
  };
}

function expectClose(actual: ArrayLike<number>, expected: Matrix, tolerance: number): void {
  const want = flat(expected);
  expect(actual.length).toBe(want.length);
  for (let i = 0; i < want.length; i++) {
    const wanted = want[i] as number;
    expect(Math.abs((actual[i] as number) - wanted)).toBeLessThanOrEqual(
      tolerance * Math.max(1, Math.abs(wanted)),
    );
  }
}

describe('advantage estimators equal the recorded ones', () => {
  test.each(Object.entries(fixture.params.advantage))('%s', (name, params) => {
    const all = fixture.inputs.uid.map((_, i) => i);
    const rows = (params['rows'] as number[] | undefined) ?? all;
    const inputs = inputsOf(fixture.inputs, rows, params['rewards'] as string);
    const column = (key: string): Float64Array =>
      flat(rows.map((row) => fixture.inputs[key]?.[row] as number[]));
    inputs.values = column('values');
    inputs.oldLogProbs = column('old_log_prob');
    inputs.sumPiSquared = column('sum_pi_squared');
    if (params['is_weights']) inputs.rolloutIsWeights = column('is_weights');
    if (params['reward_baselines']) inputs.rewardBaselines = params['reward_baselines'] as number[];
    const config: AdvantageConfig = {
      gamma: params['gamma'] as number | undefined,
      lam: params['lam'] as number | undefined,
      normAdvByStdInGrpo: params['norm_adv_by_std_in_grpo'] as boolean | undefined,
      handleZeroTail: params['handle_zero_tail'] as boolean | undefined,
    };
    const estimator = params['estimator'] as string;
    const result = computeAdvantagesDouble(estimator, inputs, config);
    const tolerance = /^(grpo|gpg)/.test(estimator) ? 1e-6 : 1e-9; // verl computes these statistics in float32
    const expected = fixture.advantage[name] as { adv: Matrix; ret: Matrix };
    expectClose(result.advantages, expected.adv, tolerance);
    expectClose(result.returns, expected.ret, tolerance);
  });

  test.each(fixture.egpo.cases)('egpo λ $lambda α $alpha', (example) => {
    const { inputs: source } = fixture.egpo;
    const full = { ...fixture.inputs, ...source } as Fixture['inputs'];
    const inputs = inputsOf(full, [0, 1, 2, 3, 4, 5], 'rewards');
    inputs.entropy = flat(source['entropys'] as Matrix);
    const config = {
      egpoLambda: example.lambda,
      egpoAlpha: example.alpha,
      normAdvByStdInGrpo: example.norm_adv_by_std_in_grpo,
    };
    expectClose(computeAdvantagesDouble('egpo', inputs, config).advantages, example.adv, 1e-9);
  });
});

describe('masked statistics', () => {
  const values = flat(fixture.inputs['values'] as Matrix);
  const mask = flat(fixture.inputs['mask'] as Matrix);

  test('equal the recorded ones', () => {
    const { helpers } = fixture;
    expect(maskedMean(values, mask)).toBeCloseTo(helpers['masked_mean'] as number, 12);
    expect(maskedVar(values, mask)).toBeCloseTo(helpers['masked_var'] as number, 12);
    expect(maskedVar(values, mask, false)).toBeCloseTo(helpers['masked_var_biased'] as number, 12);
    expectClose(maskedWhiten(values, mask), helpers['masked_whiten'] as Matrix, 1e-9);
  });

  test('ignore NaN outside the mask and refuse a mask of one', () => {
    expect(maskedMean([1, Number.NaN, 3], [1, 0, 1])).toBeCloseTo(2, 7);
    expect(() => maskedVar([1, 2], [0, 1])).toThrow(/at least two unmasked/);
  });
});

describe('rewards on masked tokens', () => {
  // policy, policy, tool (reward 1), policy, user (reward 2)
  const inputs: AdvantageInputs = {
    offsets: [0, 5],
    responseMask: [1, 1, 0, 1, 0],
    tokenRewards: [0, 0, 1, 0, 2],
    values: [0, 0, 0, 0, 0],
    uid: ['p'],
  };

  test('gae credits them to the policy token before', () => {
    expect([...computeAdvantagesDouble('gae', inputs, { gamma: 0.5, lam: 1 }).returns]).toEqual([
      1, 2, 2, 2, 0,
    ]);
  });

  test('reinforce_plus_plus and remax do the same', () => {
    expect([...computeAdvantagesDouble('reinforce_plus_plus', inputs).returns]).toEqual([3, 3, 0, 2, 0]);
    const remax = computeAdvantagesDouble('remax', { ...inputs, rewardBaselines: [1] });
    expect([...remax.advantages]).toEqual([2, 2, 3, 1, 2]);
  });
});

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

  test('names the estimator or column that is missing', () => {
    expect(() => computeAdvantagesDouble('nope', inputs)).toThrow(/unknown advantage estimator 'nope'.*grpo/);
    expect(() => computeAdvantagesDouble('gae', inputs)).toThrow(/'gae' needs the column 'values'/);
    expect(() => computeAdvantagesDouble('grpo_passk', inputs)).toThrow(/rollout\.n/);
    expect(() => computeAdvantagesDouble('grpo', { ...inputs, responseMask: [1] })).toThrow(
      /expected 2 entries/,
    );
  });
});
