import { readFileSync } from 'node:fs';
import path from 'node:path';
import { resolvePolicyLoss, resolveValueLoss } from '../../ts/actor/update_options';
import type { NativePolicyLossInputs } from '../../ts/native/bridge';
import { loadBinding } from '../../ts/native/loader';

// The core's losses against verl's own functions in float64 (test/fixtures/conformance/core_head.json). Ours
// take float32 arrays, so inputs are rounded: 1e-6 of the largest entry.

type Matrix = number[][];
type Params = Record<string, unknown> & {
  loss_mode: string;
  loss_agg_mode: string;
  is_weights: boolean;
  policy_loss: Record<string, number>;
  adv_sign?: number;
  global_batch_info?: Record<string, number>;
};
interface Recorded {
  loss: number;
  grad: Matrix;
  metrics: Record<string, number>;
  rng_dependent?: boolean;
}

const fixture = JSON.parse(
  readFileSync(path.join(__dirname, '../fixtures/conformance/core_head.json'), 'utf8'),
);
const { inputs, params } = fixture;
const binding = loadBinding();
const rows = (inputs.mask as Matrix).length;
const width = (inputs.mask as Matrix)[0]!.length;
const floats = (matrix: Matrix): Float32Array => Float32Array.from(matrix.flat());
const offsets = (count: number, length: number): Int32Array =>
  Int32Array.from({ length: count + 1 }, (_, i) => i * length);
const ones = (matrix: Matrix): number => matrix.flat().reduce((sum, value) => sum + value, 0);

function expectClose(actual: ArrayLike<number>, expected: ArrayLike<number>, tolerance = 1e-6): void {
  const want = Array.from(expected);
  const scale = Math.max(1e-3, ...want.map(Math.abs));
  expect(actual.length).toBe(want.length);
  want.forEach((value, i) => {
    expect(Math.abs((actual[i] as number) - value) / scale).toBeLessThan(tolerance);
  });
}

function policyInputs(source: Record<string, Matrix>, p: Params): NativePolicyLossInputs {
  const mask = source['mask'] as Matrix;
  const info = p.global_batch_info;
  const sign = p.adv_sign ?? 1;
  return {
    offsets: offsets(mask.length, mask[0]!.length),
    responseMask: Uint8Array.from(mask.flat()),
    globalTokens: info?.['batch_num_tokens'] ?? ones(mask),
    globalSequences: info?.['global_batch_size'] ?? mask.length,
    logProbs: floats(source['log_prob'] as Matrix),
    entropy: null,
    oldLogProbs: floats(source['old_log_prob'] as Matrix),
    advantages: floats(source['advantages'] as Matrix).map((a) => sign * a),
    refLogProbs: null,
    rolloutIsWeights: p.is_weights ? floats(inputs.is_weights) : null,
    givenLoss: null,
    teacherLogProbs: null,
    studentTop: null,
  };
}

function options(p: Params) {
  const { clip_cov_ratio, clip_cov_lb, clip_cov_ub, kl_cov_ratio, ppo_kl_coef, dro_beta } = p.policy_loss;
  return resolvePolicyLoss(
    'test',
    {
      mode: p.loss_mode,
      clipRatioLow: p['clip_ratio_low'] as number,
      clipRatioHigh: p['clip_ratio_high'] as number,
      clipRatioC: p['clip_ratio_c'] as number,
      aggregation: p.loss_agg_mode as 'token-mean',
      ...(p.global_batch_info ? { scaleFactor: p.global_batch_info['loss_scale_factor'] as number } : {}),
      tauPos: p['tau_pos'],
      tauNeg: p['tau_neg'],
      clipCovRatio: clip_cov_ratio,
      clipCovLb: clip_cov_lb,
      clipCovUb: clip_cov_ub,
      klCovRatio: kl_cov_ratio,
      ppoKlCoef: ppo_kl_coef,
      droBeta: dro_beta,
    },
    width,
  );
}

describe.each(['policy_loss', 'policy_loss_global', 'policy_loss_extreme'])('%s', (section) => {
  test.each(Object.keys(fixture[section]))('%s', async (name) => {
    const p = params[section][name] as Params;
    const recorded = fixture[section][name] as Recorded;
    const source = section === 'policy_loss_extreme' ? inputs.extreme : inputs;
    const result = await binding.policyLoss(policyInputs(source, p), options(p));
    expect(Number.isFinite(result.loss)).toBe(true);
    if (recorded.rng_dependent) return;
    // verl multiplies by the number of ranks because FSDP averages gradients; ours are summed.
    const ranks = p.global_batch_info?.['dp_size'] ?? 1;
    // Extreme ratios magnify the rounding of the inputs: e^20 of a difference that is off by 2^-24 of 30.
    const tolerance = section === 'policy_loss_extreme' ? 1e-5 : 1e-6;
    expectClose([result.loss * ranks], [recorded.loss], tolerance * 10);
    expectClose(
      result.gradLogProbs.map((g) => g * ranks),
      recorded.grad.flat(),
      tolerance,
    );
    for (const [key, value] of Object.entries(recorded.metrics))
      expectClose([result.metrics[key.replace('actor/', '')] as number], [value], tolerance * 10);
  });
});

test.each(['token-mean', 'seq-mean-token-sum', 'seq-mean-token-mean'])('value loss, %s', async (mode) => {
  const recorded = fixture.value_loss[mode];
  const loss = resolveValueLoss('test', { clipRangeValue: 0.5, aggregation: mode as 'token-mean' }, width);
  const result = await binding.valueLoss(
    {
      offsets: offsets(rows, width),
      responseMask: Uint8Array.from((inputs.mask as Matrix).flat()),
      globalTokens: ones(inputs.mask),
      globalSequences: rows,
      predictions: floats(recorded.vpreds),
      values: floats(inputs.values),
      returns: floats(inputs.rewards).map((reward) => reward + 0.3),
    },
    loss,
  );
  expectClose([result.loss], [recorded.loss]);
  expectClose(result.gradPredictions, recorded.grad.flat());
  expectClose([result.metrics['vf_clipfrac'] as number], [recorded.clipfrac]);
});

// gpg's per-token loss is -advantage * log-prob: with log-probs of -1 its aggregate is that of the advantages.
test.each(Object.keys(fixture.agg_loss))('aggregation %s', async (name) => {
  const p = params.agg_loss[name];
  const mask = (inputs.mask as Matrix).map((row, i) => (p.zero_rows?.includes(i) ? row.map(() => 0) : row));
  const seqMean = (p.mode as string).startsWith('seq-mean');
  // verl's default counts the rows that are not fully masked; ours is the number of rows, here given.
  const counted = mask.filter((row) => row.some((m) => m > 0)).length;
  const result = await binding.policyLoss(
    {
      ...policyInputs({ ...inputs, mask }, { is_weights: false } as Params),
      globalTokens: p.batch_num_tokens ?? ones(mask),
      globalSequences: p.global_batch_size ?? (seqMean ? counted : rows),
      logProbs: new Float32Array(rows * width).fill(-1),
    },
    resolvePolicyLoss(
      'test',
      { mode: 'gpg', aggregation: p.mode, scaleFactor: p.loss_scale_factor ?? width },
      width,
    ),
  );
  expectClose([result.loss * (p.dp_size ?? 1)], [fixture.agg_loss[name]]);
});

const kinds = Object.keys(fixture.kl_penalty).filter((kind) => fixture.kl_penalty[kind].grad);
test.each(kinds)('gradient of the KL loss %s', async (kind) => {
  const unmasked = (inputs.mask as Matrix).map((row) => row.map(() => 1));
  const result = await binding.policyLoss(
    {
      ...policyInputs({ ...inputs, mask: unmasked }, { is_weights: false } as Params),
      advantages: new Float32Array(rows * width),
      refLogProbs: floats(inputs.ref_log_prob),
    },
    resolvePolicyLoss(
      'test',
      { mode: 'gpg', aggregation: 'token-sum', useKlLoss: true, klLossCoef: 1, klLossType: kind },
      width,
    ),
  );
  const { value, grad } = fixture.kl_penalty[kind] as { value: Matrix; grad: Matrix };
  expectClose([result.loss], [ones(value)], 1e-5);
  expectClose(result.gradLogProbs, grad.flat(), 1e-5);
});
