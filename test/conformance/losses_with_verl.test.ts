import { type PolicyLossResult, policyLoss, valueLoss } from '../../ts/actor/loss_probe';
import type { Aggregation } from '../../ts/algorithms/names';
import type { RolloutCorrectionOptions } from '../../ts/algorithms/rollout_correction/options';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import { loadBinding } from '../../ts/native/loader';
import {
  camelled,
  describeWithVerl,
  differing,
  differingMetrics,
  drawnByVerl,
  expectAllAgree,
  type Matrix,
  type VerlCase,
} from '../helpers/verl_cases';

// Losses, gradients and metrics on random inputs against verl's own functions in float64 (test/fixtures/random_verl). The inputs are float32 on both sides.

interface LossCase extends VerlCase {
  inputs: Record<string, Matrix> & { response_mask: Matrix };
  global_batch_info: {
    dp_size?: number;
    batch_num_tokens?: number;
    global_batch_size?: number;
    loss_scale_factor?: number | null;
  };
  expected: { loss: number; gradient: Matrix; largest: number; metrics: Record<string, number> };
}
interface PolicyCase extends LossCase {
  name: string;
  options: Record<string, number | string> & { loss_agg_mode: Aggregation; kl_loss_type: string };
  rollout_correction: Record<string, unknown> | null;
  expected: LossCase['expected'] & { entropy_gradient: Matrix; mask: Matrix };
}
interface ValueCase extends LossCase {
  options: { cliprange_value: number; loss_agg_mode: Aggregation };
}

const MODES = ['bypass_mode', 'cispo', 'clip_cov', 'dppo_kl', 'dppo_tv', 'dro'].concat([
  'geo_mean',
  'gpg',
  'gspo',
  'kl_cov',
  'sapo',
  'vanilla',
]);
// Gradients are float32, and so are the weights of bypass mode.
const TOLERANCE = 1e-7;
// Metrics that are smaller are compared as if they were this large: differences of large numbers.
const LEAST = 1e-2;

// The calls that a group of workers would get, without one.
const binding = loadBinding();
const group = {
  worldSize: 1,
  callBinding: (name: 'policyLoss' | 'valueLoss', args: unknown[]) =>
    (binding[name] as (...args: unknown[]) => unknown)(...args),
} as unknown as WorkerGroup;

function layoutOf({ inputs: { response_mask: mask }, global_batch_info: info }: LossCase) {
  const width = mask[0]!.length;
  return {
    offsets: Array.from({ length: mask.length + 1 }, (_, row) => row * width),
    responseMask: mask.flat(),
    ...(info.batch_num_tokens === undefined ? {} : { globalTokens: info.batch_num_tokens }),
    ...(info.global_batch_size === undefined ? {} : { globalSequences: info.global_batch_size }),
  };
}

const scaleOf = ({ loss_scale_factor: factor }: LossCase['global_batch_info']) =>
  typeof factor === 'number' ? { scaleFactor: factor } : {};

function ours(drawn: PolicyCase) {
  const { name, inputs, rollout_correction: correction } = drawn;
  const { clip_ratio_low, clip_ratio_high, clip_ratio_c, loss_agg_mode, kl_loss_coef, ...others } =
    drawn.options;
  return policyLoss(
    name,
    {
      ...layoutOf(drawn),
      logProbs: inputs['log_prob']!.flat(),
      oldLogProbs: inputs['old_log_prob']!.flat(),
      advantages: inputs['advantages']!.flat(),
      entropy: inputs['entropy']!.flat(),
      refLogProbs: inputs['ref_log_prob']!.flat(),
      ...(inputs['rollout_is_weights'] === null
        ? {}
        : { rolloutIsWeights: inputs['rollout_is_weights']!.flat() }),
    },
    {
      ...camelled(others),
      clipRatioLow: clip_ratio_low as number,
      clipRatioHigh: clip_ratio_high as number,
      clipRatioC: clip_ratio_c as number,
      aggregation: loss_agg_mode,
      useKlLoss: kl_loss_coef !== 0,
      klLossCoef: kl_loss_coef as number,
      ...scaleOf(drawn.global_batch_info),
      ...(correction === null ? {} : { rolloutCorrection: camelled(correction) as RolloutCorrectionOptions }),
    },
    group,
  );
}

/** Loss and gradient. Terms of a loss may cancel each other: it is as exact as entries of gradients, which are of the size of the terms. */
function differingLoss(
  { expected, global_batch_info: { dp_size: ranks = 1 } }: LossCase,
  loss: number,
  gradient: Float32Array,
): string[] {
  const { largest } = expected;
  const size = Math.max(Math.abs(expected.loss), largest * gradient.length);
  return [
    ...differing('loss', [loss * ranks], [expected.loss], TOLERANCE, size),
    ...differing('gradient', gradientOf(gradient, ranks), expected.gradient.flat(), TOLERANCE, largest),
  ];
}

/** verl multiplies by the number of ranks because FSDP averages gradients; ours are summed. */
const gradientOf = (gradient: Float32Array, ranks = 1): Float64Array =>
  Float64Array.from(gradient, (entry) => entry * ranks);

const own = (metrics: Record<string, number>): Record<string, number> =>
  Object.fromEntries(
    Object.entries(metrics).map(([name, value]) => [name.replace(/^(actor|critic)\//, ''), value]),
  );

describeWithVerl('as verl computes it', () => {
  let drawn: { policy_losses: PolicyCase[]; value_losses: ValueCase[] };
  beforeAll(() => {
    drawn = drawnByVerl<{ policy_losses: PolicyCase; value_losses: ValueCase }>(240, [
      'policy_losses',
      'value_losses',
    ]);
  });

  test.each(MODES)('%s', async (mode) => {
    const cases = drawn.policy_losses.filter(({ name }) => name === mode);
    await expectAllAgree(cases, async (one) => {
      const result = await ours(one);
      if (one.error !== undefined || rejectsAll(one)) return differingFromNothing(one, result);
      const { expected, global_batch_info } = one;
      const entropy = result.gradEntropy ?? new Float32Array(result.gradLogProbs.length);
      return [
        ...differingLoss(one, result.loss, result.gradLogProbs),
        ...differing(
          'gradient by entropy',
          gradientOf(entropy, global_batch_info.dp_size),
          expected.entropy_gradient.flat(),
          TOLERANCE,
        ),
        ...differingMetrics(result.metrics, own(expected.metrics), TOLERANCE, LEAST),
      ];
    });
  });

  test('the value loss', async () => {
    await expectAllAgree(drawn.value_losses, async (one) => {
      if (one.error !== undefined) return [one.error];
      const { inputs, options, expected } = one;
      const result = await valueLoss(
        {
          ...layoutOf(one),
          predictions: inputs['vpreds']!.flat(),
          values: inputs['values']!.flat(),
          returns: inputs['returns']!.flat(),
        },
        {
          clipRangeValue: options.cliprange_value,
          aggregation: options.loss_agg_mode,
          ...scaleOf(one.global_batch_info),
        },
        group,
      );
      return [
        ...differingLoss(one, result.loss, result.gradValues),
        ...differingMetrics(result.metrics, own(expected.metrics), TOLERANCE, LEAST),
      ];
    });
  });
});

/** In bypass mode, where verl divides by the number of tokens that are left. */
const rejectsAll = ({ expected, rollout_correction, global_batch_info }: PolicyCase): boolean =>
  rollout_correction !== null &&
  global_batch_info.batch_num_tokens === undefined &&
  !expected.mask.flat().includes(1);

/** docs/algorithms.md: without a token the loss is 0, and without a weight the effective sample size; verl has NaN and a division by zero. */
function differingFromNothing(one: PolicyCase, result: PolicyLossResult): string[] {
  if (one.error === undefined)
    return [
      ...differing('loss', [result.loss], [0], 0),
      ...differing('gradient', result.gradLogProbs, new Float32Array(result.gradLogProbs.length), 0),
    ];
  if (one.error !== 'ZeroDivisionError: float division by zero') return [one.error];
  return differing('size', [result.metrics['rollout_corr/rollout_is_eff_sample_size'] as number], [0], 0);
}
