import { readFileSync } from 'node:fs';
import { join } from 'node:path';
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
import { expOfLogProb } from '../../../ts/algorithms/exp';
import { maskedMean } from '../../../ts/algorithms/masked';
import { Moments } from '../../../ts/algorithms/moments';
import { Batch } from '../../../ts/batch/batch';
import { TroupeError } from '../../../ts/errors';

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
  readFileSync(join(__dirname, '../../fixtures/conformance/core_head.json'), 'utf8'),
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
    const { mean, scale } = momentsOf(values.filter((_, i) => mask[i])).whitening();
    const whitened = values.map((value) => (value - mean) * scale);
    expectClose(whitened, helpers['masked_whiten'] as Matrix, 1e-9);
    expect(1 / scale ** 2 - 1e-8).toBeCloseTo(helpers['masked_var'] as number, 12);
  });

  test('ignore NaN outside the mask', () => {
    expect(maskedMean([1, Number.NaN, 3], [1, 0, 1])).toBeCloseTo(2, 7);
    const inputs = { offsets: [0, 3], tokenRewards: [1, 2, 3], values: [0, Number.NaN, 0], uid: ['p'] };
    const two = computeAdvantagesDouble('gae', { ...inputs, responseMask: [1, 0, 1] });
    expect([two.advantages[0], two.advantages[2]]).not.toContain(Number.NaN);
  });

  test.each(['gae', 'reinforce_plus_plus', 'reinforce_plus_plus_baseline', 'gdpo'])(
    'refuse a batch of one token, as verl does: %s',
    (name) => {
      const inputs = {
        offsets: [0, 3],
        responseMask: [0, 0, 1],
        tokenRewards: [1, 2, 3],
        values: [0.5, 0.5, 0.5],
        uid: ['p'],
        rewardComponents: { a: [3] },
      };
      expect(() => computeAdvantagesDouble(name, inputs)).toThrow(/at least two unmasked/);
    },
  );

  test('do not cancel when the mean is far from 0, however the numbers are divided', () => {
    const far = [1e9 + 1, 1e9 + 2, 1e9 + 4, 1e9 + 9];
    // Around their mean, 1e9 + 4, the squares add up to 38; verl's mean divides by n + 1e-8 and is 2.5 lower.
    const variance = (38 + 4 * 2.5 ** 2) / 3;
    for (const parts of [[far], [far.slice(0, 1), far.slice(1)], far.map((value) => [value])]) {
      const { scale } = momentsOf(...parts.map((part) => Float64Array.from(part))).whitening();
      expect(Math.abs(1 / scale ** 2 / variance - 1)).toBeLessThan(1e-6);
    }
  });
});

/** Moments of numbers that come in parts, each centred on its first. */
function momentsOf(...parts: Float64Array[]): Moments {
  const moments = new Moments();
  for (const part of parts) {
    const centre = part[0] as number;
    const centred = part.map((value) => value - centre);
    moments.add(
      part.length,
      centre,
      centred.reduce((sum, value) => sum + value, 0),
      centred.reduce((sum, value) => sum + value * value, 0),
    );
  }
  return moments;
}

test('expOfLogProb equals Math.exp within 3e-15', () => {
  let worst = 0;
  for (let n = 0; n <= 400_000; n++) {
    const x = -n * 1.0000001e-4; // the whole of the table and its middles, and beyond -40
    worst = Math.max(worst, Math.abs(expOfLogProb(x) / Math.exp(x) - 1));
  }
  expect(worst).toBeLessThan(3e-15);
  for (const x of [0, -0, 1e-7, 3, 800, -40, -41, -744, -800, -1e300, Infinity, -Infinity, NaN])
    expect(expOfLogProb(x)).toBe(Math.exp(x));
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

describe('optimal-token baselines', () => {
  // Two groups, not adjacent; a tool token in the longest response; a response without policy tokens.
  const weighted: AdvantageInputs = {
    offsets: [0, 4, 6, 8, 11, 12],
    responseMask: [1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0],
    tokenRewards: [0, 0, 1, 2, 0, 1, 0, 3, 1, 0, -1, 0],
    uid: ['a', 'b', 'a', 'b', 'a'],
    oldLogProbs: [-1, -2, -0.5, -3, -0.1, -45, -1.5, -2.5, -0.7, -0.2, -0.9, -1],
    sumPiSquared: [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.1, 0.2, 0.35, 0.45, 1],
    rolloutIsWeights: [1, 2, 0.5, 1, 1, 1, 2, 1, 1, 0.5, 1, 1],
  };

  // Long enough for the loops of four tokens; what is behind the mask is nobody's number.
  const lengths = [23, 9, 16, 0, 30, 4, 31, 1, 12];
  const offsets = [0];
  for (const length of lengths) offsets.push((offsets.at(-1) as number) + length);
  const noise = (t: number) => (Math.imul(t + 1, 0x9e3779b1) >>> 8) / 2 ** 24;
  const tokens = Array.from({ length: offsets.at(-1) as number }, (_, t) => t);
  const policyToken = (t: number) => noise(t) < 0.7;
  const long: AdvantageInputs = {
    offsets,
    responseMask: tokens.map((t) => (policyToken(t) ? 1 : 0)),
    tokenRewards: tokens.map((t) => noise(t + 1000) - 0.5),
    uid: ['a', 'b', 'a', 'b', 'a', 'b', 'a', 'c', 'b'],
    oldLogProbs: tokens.map((t) => (policyToken(t) ? -3 * noise(t + 2000) : Number.NaN)),
    sumPiSquared: tokens.map((t) => (policyToken(t) ? noise(t + 3000) : Number.NaN)),
  };

  /** The definition, token by token. */
  function expected(inputs: AdvantageInputs, compact: boolean, handleZeroTail: boolean): number[] {
    const { offsets, responseMask: m, tokenRewards: r, uid } = inputs;
    const rows = uid as string[];
    const tokens = rows.map((_, i) => {
      const all = Array.from({ length: (offsets[i + 1] as number) - (offsets[i] as number) }, (_, c) => c);
      const policy = all.filter((c) => m[(offsets[i] as number) + c]);
      return policy.map((c, k) => {
        const at = (d: number): number => (offsets[i] as number) + d;
        const energy = policy.slice(0, k + 1).reduce((sum, d) => {
          const weight = inputs.rolloutIsWeights?.[at(d)] ?? 1;
          const proxy =
            1 -
            2 * Math.exp(inputs.oldLogProbs?.[at(d)] as number) +
            (inputs.sumPiSquared?.[at(d)] as number);
          return sum + proxy * weight * weight;
        }, 0);
        const toGo = all.slice(c).reduce((sum, d) => sum + (r[at(d)] as number), 0);
        return { t: at(c), column: compact ? k : c, energy, toGo };
      });
    });
    const out = new Array<number>(r.length).fill(0);
    rows.forEach((id, i) => {
      const group = rows.flatMap((other, j) => (other === id ? [tokens[j] ?? []] : []));
      const second = group.map((row) => row.length).sort((a, b) => b - a)[1] as number;
      for (const token of tokens[i] ?? []) {
        const column = group.flat().filter((other) => other.column === token.column);
        const weighted = column.reduce((sum, other) => sum + other.toGo * other.energy, 0);
        const total = column.reduce((sum, other) => sum + other.energy, 0);
        const alone = (tokens[i] ?? []).length > second && token.column >= second;
        const baseline = weighted / (total + 1e-8);
        out[token.t] = token.toGo - ((handleZeroTail && alone) || group.length === 1 ? 0 : baseline);
      }
    });
    return out;
  }

  test.each([
    ['optimal_token_baseline', false, true],
    ['optimal_token_baseline', false, false],
    ['tir_optimal_token_baseline', true, true],
    ['tir_optimal_token_baseline', true, false],
  ] as const)('%s over columns of %s compaction, zero tail %s', (name, compact, handleZeroTail) => {
    for (const inputs of [weighted, long]) {
      const { advantages } = computeAdvantagesDouble(name, inputs, { handleZeroTail });
      expected(inputs, compact, handleZeroTail).forEach((value, t) => {
        expect(advantages[t]).toBeCloseTo(value, 12);
      });
    }
  });

  test('tir_optimal_token_baseline leaves out responses without policy tokens before it forms groups', () => {
    // Of the first prompt's responses one is all a tool's and one is empty: the third is alone and has no baseline.
    const inputs: AdvantageInputs = {
      offsets: [0, 3, 5, 5, 7, 8],
      responseMask: [1, 1, 1, 0, 0, 1, 1, 1],
      tokenRewards: [0, 0.5, 1, 0, 4, 0, 2, 3],
      uid: ['a', 'a', 'a', 'b', 'b'],
      oldLogProbs: [-1, -0.5, -2, -1, -1, -1, -0.5, -2],
      sumPiSquared: [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.1],
    };
    for (const handleZeroTail of [true, false]) {
      const result = computeAdvantagesDouble('tir_optimal_token_baseline', inputs, { handleZeroTail });
      expect([...result.advantages].slice(0, 5)).toEqual([1.5, 1.5, 1, 0, 0]);
      expect([...result.returns]).toEqual([1.5, 1.5, 1, 4, 4, 2, 2, 3]);
      expect(result.advantages[5]).not.toBe(2);
    }
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
    expect(() => computeAdvantagesDouble('throws', inputs)).toThrow("estimator 'throws' threw: boom");
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
