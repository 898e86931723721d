import { computeAdvantagesDouble } from '../../../ts/algorithms/advantages';
import {
  describeWithVerl,
  differing,
  drawnByVerl,
  expectAllAgree,
  largest,
  type Matrix,
  ragged,
  type VerlCase,
} from '../../helpers/verl_cases';

// Advantages and returns on random inputs against verl's own functions in float64 (test/fixtures/random_verl). What docs/algorithms.md lists under "Where we
// differ from verl" is left out of the draws, and checked for what it is.

interface Estimated {
  advantages: Matrix;
  returns: Matrix;
}
interface AdvantageCase extends VerlCase {
  name: string;
  lengths: number[];
  mask: Matrix;
  inputs: Record<'values' | 'old_log_probs' | 'sum_pi_squared', Matrix> & {
    rollout_is_weights: Matrix | null;
    reward_baselines: number[];
  };
  uid: string[];
  options: {
    gamma: number;
    lam: number;
    norm_adv_by_std_in_grpo: boolean;
    handle_zero_tail: boolean;
    f_norm: number;
  };
  components?: Record<string, number[]>;
  keys?: string[];
  weights?: number[] | null;
  /** Of an estimator that verl computes in float32. */
  magnified?: number;
  rewards: Matrix;
  expected: Estimated;
  stray?: { rewards: Matrix; expected: Estimated };
  moved?: { rewards: Matrix; expected: Estimated };
  spoiled?: { rewards: Matrix; expected: Estimated };
}

const PER_TOKEN = [
  'gae',
  'optimal_token_baseline',
  'reinforce_plus_plus',
  'remax',
  'tir_optimal_token_baseline',
];
// They subtract a baseline that may be near the return.
const BASELINES = ['optimal_token_baseline', 'remax', 'tir_optimal_token_baseline'];
const PER_GROUP = [
  'gpg',
  'grpo',
  'grpo_passk',
  'grpo_vectorized',
  'opo',
  'reinforce_plus_plus_baseline',
].concat(['rloo', 'rloo_vectorized']);
// Of the largest entry. verl has the factor of gpg and the deviation of a group of one in float32.
const RELATIVE: Readonly<Record<string, number>> = { gpg: 1e-7, grpo: 1e-7 };
const DOUBLE = 1e-9;
// Of what statistics in float32 make of an error: some roundings.
const FLOAT = 2e-7;

function offsetsOf(lengths: readonly number[]): number[] {
  const offsets = [0];
  for (const length of lengths) offsets.push((offsets.at(-1) as number) + length);
  return offsets;
}

function estimated(drawn: AdvantageCase, rewards: Matrix) {
  const { lengths, inputs, options, components, keys, weights } = drawn;
  const column = (rows: Matrix): number[] => ragged(rows, lengths);
  return computeAdvantagesDouble(
    drawn.name,
    {
      offsets: offsetsOf(lengths),
      responseMask: column(drawn.mask),
      tokenRewards: column(rewards),
      uid: drawn.uid,
      values: column(inputs.values),
      oldLogProbs: column(inputs.old_log_probs),
      sumPiSquared: column(inputs.sum_pi_squared),
      rewardBaselines: inputs.reward_baselines,
      ...(inputs.rollout_is_weights === null ? {} : { rolloutIsWeights: column(inputs.rollout_is_weights) }),
      ...(components === undefined ? {} : { rewardComponents: components }),
    },
    {
      gamma: options.gamma,
      lam: options.lam,
      normAdvByStdInGrpo: options.norm_adv_by_std_in_grpo,
      handleZeroTail: options.handle_zero_tail,
      gpgFNorm: options.f_norm,
      ...(keys === undefined ? {} : { gdpoRewardKeys: keys }),
      ...(weights == null ? {} : { gdpoRewardWeights: weights }),
    },
  );
}

/** Advantages and returns where `counts` is 1: all tokens but padding unless it says less. */
function differingEstimates(
  { name: estimator, lengths, magnified }: AdvantageCase,
  actual: ReturnType<typeof estimated>,
  expected: Estimated,
  counts?: Matrix,
): string[] {
  const chosen = counts === undefined ? null : ragged(counts, lengths);
  const kept = (values: ArrayLike<number>): number[] =>
    Array.from(values).filter((_, token) => chosen === null || chosen[token] === 1);
  const [advantages, returns] = [expected.advantages, expected.returns].map((rows) =>
    kept(ragged(rows, lengths)),
  );
  // What is left of returns is as exact as they are.
  const whole = BASELINES.includes(estimator) ? returns! : advantages!;
  const relative = magnified === undefined ? (RELATIVE[estimator] ?? DOUBLE) : FLOAT;
  return [
    ...differing('advantages', kept(actual.advantages), advantages!, relative, magnified ?? largest(whole)),
    ...differing('returns', kept(actual.returns), returns!, relative, magnified),
  ];
}

/** verl refuses to whiten one number, and none; so do we. */
const WHITENING = /ValueError: (The sum of the mask is one|At least one element in the mask)/;

function differingCase(drawn: AdvantageCase): string[] {
  if (drawn.error === undefined)
    return differingEstimates(drawn, estimated(drawn, drawn.rewards), drawn.expected);
  if (!WHITENING.test(drawn.error)) return [drawn.error];
  expect(() => estimated(drawn, drawn.rewards)).toThrow(/whitening needs at least two unmasked/);
  return [];
}

describeWithVerl('as verl computes it', () => {
  let drawn: AdvantageCase[];
  beforeAll(() => {
    drawn = drawnByVerl<{ advantages: AdvantageCase }>(280, ['advantages']).advantages;
  });
  const casesOf = (wanted: string) => drawn.filter(({ name }) => name === wanted);
  const whole = (wanted: string) => casesOf(wanted).filter(({ error }) => error === undefined);

  test.each([...PER_TOKEN, ...PER_GROUP, 'gdpo'])('%s', async (name) => {
    await expectAllAgree(casesOf(name), differingCase);
  });

  test.each(PER_TOKEN)(
    '%s: the reward of a masked token is that of the token of the policy before it, and lost in verl',
    async (name) => {
      await expectAllAgree(whole(name), (one) => {
        const { stray, moved, mask } = one as Required<AdvantageCase>;
        return [
          ...differingEstimates(one, estimated(one, stray.rewards), moved.expected, mask),
          ...differingEstimates(one, estimated(one, one.rewards), stray.expected, mask),
        ];
      });
    },
  );

  test.each(PER_GROUP)(
    '%s: a reward that is not finite is an error, and not a number in verl',
    async (name) => {
      await expectAllAgree(whole(name), (one) => {
        const { rewards, expected } = (one as Required<AdvantageCase>).spoiled;
        expect(() => estimated(one, rewards)).toThrow(expect.objectContaining({ code: 'NON_FINITE' }));
        return ragged(expected.advantages, one.lengths).every(Number.isFinite) ? ['verl has numbers'] : [];
      });
    },
  );
});
