import type { AdvantageConfig, AdvantageInputs } from '../../../ts/algorithms/advantage_types';
import { computeAdvantages, computeAdvantagesDouble } from '../../../ts/algorithms/advantages';
import { Batch } from '../../../ts/batch/batch';
import { expectClose, type Fixture, fixture, flat, type Matrix } from './recorded_advantages';

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

test.each(['grpo', 'rloo', 'opo', 'gpg', 'egpo'])(
  '%s: equal rewards in a group, of any value, have advantages of exactly 0',
  (name) => {
    // Eight in the first group; the second has different ones.
    const offsets = [0, 2, 3, 6, 10, 11, 13, 16, 17, 18, 19];
    const tokens = offsets.at(-1) as number;
    const tokenRewards: number[] = Array.from({ length: tokens }, (_, t) =>
      offsets.includes(t + 1) ? 0.1 : 0,
    );
    tokenRewards[18] = 1;
    const { advantages } = computeAdvantagesDouble(name, {
      offsets,
      responseMask: new Array(tokens).fill(1),
      tokenRewards,
      uid: [...new Array(8).fill('a'), 'b', 'b'],
      entropy: new Array(tokens).fill(0.7),
    });
    expect(advantages.slice(0, 17).every((advantage) => advantage === 0)).toBe(true);
    expect(advantages[18]).not.toBe(0);
  },
);

describe('options', () => {
  // Two responses to one prompt and one to another; a tool's token in the first.
  const inputs: AdvantageInputs = {
    offsets: [0, 3, 5, 6],
    responseMask: [1, 0, 1, 1, 1, 1],
    tokenRewards: [0, 0, 3, 0, 1, 2],
    uid: ['p', 'p', 'q'],
    values: [0.5, 9, 1, -1, 0.25, 2],
    oldLogProbs: [-1, -9, -2, -0.5, -3, -1],
    sumPiSquared: [0.3, 0.9, 0.5, 0.6, 0.2, 0.7],
    // Of the tool's token no model says anything.
    entropy: [0.2, 50, 0.4, 0.1, 0.3, 1.5],
    rewardComponents: { right: [1, 4, 2], form: [0, 1, 5] },
  };
  const advantages = (name: string, config: AdvantageConfig = {}): number[] => [
    ...computeAdvantagesDouble(name, inputs, config).advantages,
  ];

  test.each([
    ['gae', { gamma: 1, lam: 1 }, { lam: 0.5 }],
    ['gae', { gamma: 1, lam: 1 }, { gamma: 0.5 }],
    ['reinforce_plus_plus', { gamma: 1 }, { gamma: 0.5 }],
    ['grpo', { normAdvByStdInGrpo: true }, { normAdvByStdInGrpo: false }],
    ['egpo', { egpoLambda: 0.4, egpoAlpha: 2 }, { egpoLambda: 0.5 }],
    ['egpo', { egpoLambda: 0.4, egpoAlpha: 2 }, { egpoAlpha: 4 }],
    ['gpg', { gpgFNorm: 1 }, { gpgFNorm: 2 }],
    ['gdpo', { normAdvByStdInGrpo: true }, { normAdvByStdInGrpo: false }],
    ['gdpo', { gdpoRewardKeys: ['right', 'form'], gdpoRewardWeights: [1, 1] }, { gdpoRewardWeights: [1, 3] }],
    ['gdpo', { gdpoRewardKeys: ['right', 'form'] }, { gdpoRewardKeys: ['form'] }],
  ])('those of %s that are not given are %j, and not %j', (name, defaults: AdvantageConfig, other) => {
    expect(advantages(name)).toEqual(advantages(name, defaults));
    expect(advantages(name)).not.toEqual(advantages(name, other));
  });

  test('rewards-to-go of reinforce_plus_plus know no lambda', () => {
    expect(advantages('reinforce_plus_plus', { gamma: 0.9, lam: 0.1 })).toEqual(
      advantages('reinforce_plus_plus', { gamma: 0.9 }),
    );
  });

  test('the bonus of egpo is the mean entropy of policy tokens, at most a share of the advantage', () => {
    const [base, bonus] = [advantages('grpo'), advantages('egpo', { egpoLambda: 0.5, egpoAlpha: 2 })];
    const added = bonus.map((advantage, t) => advantage - (base[t] as number));
    const half = Math.abs(base[3] as number) / 2;
    // Entropies of 0.3 and 0.2, and of 1.5 where the advantage is 2.
    expect(half).toBeGreaterThan(0.3);
    [0.15, 0, 0.15, 0.1, 0.1, 0.5].forEach((want, t) => {
      expect(added[t]).toBeCloseTo(want, 5);
    });
    const bounded = advantages('egpo', { egpoLambda: 0.5, egpoAlpha: 4 });
    expect((bounded[3] as number) - (base[3] as number)).toBeCloseTo(0.5 * Math.min(0.2, half / 2), 5);
    expect((bounded[0] as number) - (base[0] as number)).toBeCloseTo(0.5 * (half / 2), 5);
  });

  test('gpg weighs by the share of rewards that are not 0, of which there may be none', () => {
    const none = { ...inputs, tokenRewards: new Array(6).fill(0) };
    expect([...computeAdvantagesDouble('gpg', none).advantages]).toEqual(new Array(6).fill(0));
    const one = { ...inputs, tokenRewards: [0, 0, 3, 0, 0, 0] };
    // 3 responses to 1 with a reward; mean 1.5 in its group.
    expect([...computeAdvantagesDouble('gpg', one, { gpgFNorm: 2 }).advantages]).toEqual([
      2.25, 0, 2.25, -2.25, -2.25, 0,
    ]);
  });
});

describe('a response without any token', () => {
  // Responses of 2, 0, 1 and 0 tokens, of two prompts.
  const inputs: AdvantageInputs = {
    offsets: [0, 2, 2, 3, 3],
    responseMask: [1, 1, 1],
    tokenRewards: [0, 3, 1],
    uid: ['p', 'p', 'q', 'q'],
    score: [9, -1, 9, 0.5],
  };
  // Where verl has its score: on a column that is no token of the policy.
  const padded: AdvantageInputs = {
    offsets: [0, 2, 3, 4, 5],
    responseMask: [1, 1, 0, 1, 0],
    tokenRewards: [0, 3, -1, 1, 0.5],
    uid: inputs.uid,
  };

  test.each([
    ['grpo', {}],
    ['grpo', { normAdvByStdInGrpo: false }],
    ['grpo_passk', {}],
    ['rloo', {}],
    ['opo', {}],
    ['gpg', {}],
    ['reinforce_plus_plus_baseline', {}],
  ])('counts in the statistics of its group: %s %j', (name, config: AdvantageConfig) => {
    const { advantages } = computeAdvantagesDouble(name, padded, config);
    expect([...computeAdvantagesDouble(name, inputs, config).advantages]).toEqual([
      advantages[0],
      advantages[1],
      advantages[3],
    ]);
  });

  test('counts with the column score of a batch, rounded as the rewards of the others are', () => {
    const advantages = (score: number[]): number[] => {
      const batch = Batch.fromSequences([[1], [1], [1]], [[2], [3], []], {
        tokenRewards: [[0.1], [0.1], []],
        uid: ['p', 'p', 'p'],
        score,
      });
      return [...computeAdvantages('grpo', batch, { normAdvByStdInGrpo: false }).advantages];
    };
    expect(advantages([0.1, 0.1, 0.1])).toEqual([0, 0]);
    expect(advantages([0.1, 0.1, -0.2])).toEqual([expect.closeTo(0.1), expect.closeTo(0.1)]);
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
