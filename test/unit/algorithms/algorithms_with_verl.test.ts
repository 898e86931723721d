import { applyKlPenalty, createKlController, type KlControllerOptions } from '../../../ts/algorithms/kl';
import { type PfPpoOptions, pfPpoWeights } from '../../../ts/algorithms/pf_ppo';
import type { RolloutCorrectionOptions } from '../../../ts/algorithms/rollout_correction/options';
import {
  type CorrectionResult,
  rolloutCorrectionDouble,
} from '../../../ts/algorithms/rollout_correction/rollout_correction';
import { Batch } from '../../../ts/batch/batch';
import { createRewardManager } from '../../../ts/reward/manager';
import {
  camelled,
  describeWithVerl,
  differing,
  differingMetrics,
  drawnByVerl,
  expectAllAgree,
  type Matrix,
  type VerlCase,
} from '../../helpers/verl_cases';
import { sample } from '../reward/sample';

// Rollout correction, KL in the reward, PF-PPO and the penalty of long responses on random inputs against verl's own functions (test/fixtures/random_verl).

interface CorrectionCase extends VerlCase {
  inputs: Record<'response_mask' | 'old_log_prob' | 'rollout_log_prob', Matrix>;
  options: Record<string, unknown> & { rollout_rs: string | null };
  expected: { weights: Matrix | null; mask: Matrix; metrics: Record<string, number> };
}
interface KlCase extends VerlCase {
  kind: string;
  controller: Record<string, unknown>;
  batches: {
    inputs: Record<'response_mask' | 'token_level_scores' | 'old_log_probs' | 'ref_log_prob', Matrix>;
    expected: { rewards: Matrix; metrics: Record<string, number>; coefficient: number };
  }[];
}
interface PfPpoCase extends VerlCase {
  scores: number[];
  options: { reweight_method: PfPpoOptions['method']; weight_pow: number };
  expected: number[];
}
interface OverlongCase extends VerlCase {
  score: number;
  overlong_buffer_cfg: { enable: boolean; len: number; penalty_factor: number; log: boolean };
  max_resp_len: number;
  lengths: number[];
  expected: { rewards: number[]; extras: Record<string, number[]> };
}
type Kinds = {
  rollout_correction: CorrectionCase;
  kl_rewards: KlCase;
  pf_ppo: PfPpoCase;
  overlong: OverlongCase;
};

const DOUBLE = 1e-9;
const FLOAT = 1e-7;

describeWithVerl('as verl computes it', () => {
  let drawn: { [Kind in keyof Kinds]: Kinds[Kind][] };
  beforeAll(() => {
    drawn = drawnByVerl<Kinds>(200, ['rollout_correction', 'kl_rewards', 'pf_ppo', 'overlong']);
  });

  test('rollout correction', async () => {
    await expectAllAgree(drawn.rollout_correction, (one) => {
      const { inputs, options, expected } = one;
      const width = inputs.response_mask[0]!.length;
      const result = rolloutCorrectionDouble(
        {
          offsets: Array.from({ length: inputs.response_mask.length + 1 }, (_, row) => row * width),
          responseMask: inputs.response_mask.flat(),
          logProbs: inputs.old_log_prob.flat(),
          rolloutLogProbs: inputs.rollout_log_prob.flat(),
        },
        camelled(options) as RolloutCorrectionOptions,
      );
      if (one.error !== undefined) return differingFromNothing(one.error, result);
      const extra = Object.keys(result.metrics).filter((name) => !(name in expected.metrics));
      return [
        ...differing('mask', result.responseMask, expected.mask.flat(), 0),
        ...differing('weights', result.rolloutIsWeights ?? [], expected.weights?.flat() ?? [], DOUBLE),
        ...extra.map((name) => `${name} is not one of verl's`),
        // verl takes shares of sequences in float32.
        ...differingMetrics(result.metrics, expected.metrics, FLOAT, 1e-2),
      ];
    });
  });

  test('KL in the reward, and its controller', async () => {
    await expectAllAgree(drawn.kl_rewards, (one) => {
      if (one.error !== undefined) return [one.error];
      const controller = createKlController(camelled(one.controller) as KlControllerOptions);
      return one.batches.flatMap(({ inputs, expected }) => {
        const batch = Batch.fromSequences(
          inputs.response_mask.map(() => [1]),
          inputs.response_mask.map((row) => row.map(() => 1)),
          {
            responseMask: floats(inputs.response_mask),
            tokenScores: floats(inputs.token_level_scores),
            oldLogProbs: floats(inputs.old_log_probs),
            refLogProbs: floats(inputs.ref_log_prob),
          },
        );
        const result = applyKlPenalty(batch, controller, one.kind);
        return [
          ...differing('rewards', result.batch.get('tokenRewards'), expected.rewards.flat(), FLOAT),
          ...differingMetrics(result.metrics, expected.metrics, DOUBLE, 1e-6),
          ...differing('coefficient', [controller.value], [expected.coefficient], DOUBLE),
        ];
      });
    });
  });

  test('weights of PF-PPO', async () => {
    await expectAllAgree(drawn.pf_ppo, ({ error, scores, options, expected }) => {
      if (error !== undefined) return [error];
      const weights = pfPpoWeights(scores, {
        method: options.reweight_method,
        weightPow: options.weight_pow,
      });
      // The constants of verl's max_min and max_random are float32.
      return differing('weights', weights, expected, options.reweight_method === 'pow' ? DOUBLE : FLOAT);
    });
  });

  test('the penalty of long responses', async () => {
    await expectAllAgree(drawn.overlong, async (one) => {
      if (one.error !== undefined) return [one.error];
      const { penalty_factor: penaltyFactor, ...buffer } = one.overlong_buffer_cfg;
      const manager = createRewardManager('dapo', () => one.score, {
        overlong: { ...buffer, penaltyFactor, maxRespLen: one.max_resp_len },
      });
      const { scores, extras } = await manager.score(
        one.lengths.map((length) => sample('', { responseTokens: new Int32Array(length) })),
      );
      const { rewards, extras: found } = one.expected;
      // verl's are float32; score and penalty may cancel each other.
      const size = Math.max(...rewards.map((reward) => Math.abs(reward) + Math.abs(one.score)));
      return [
        ...differing('scores', scores, rewards, FLOAT, size),
        ...Object.entries(found).flatMap(([name, values]) =>
          differing(name, (extras[name] ?? []).map(Number), values, FLOAT),
        ),
        ...Object.keys(extras).filter((name) => !(name in found)),
      ];
    });
  });
});

const floats = (matrix: Matrix): Float32Array => Float32Array.from(matrix.flat());

/** docs/algorithms.md: the effective sample size of weights that are all 0, where verl divides by zero. */
function differingFromNothing(error: string, result: CorrectionResult): string[] {
  if (error !== 'ZeroDivisionError: float division by zero') return [error];
  return [
    ...differing('weights', [...new Set(result.rolloutIsWeights)], [0], 0),
    ...differing('size', [result.metrics['rollout_corr/rollout_is_eff_sample_size'] as number], [0], 0),
  ];
}
