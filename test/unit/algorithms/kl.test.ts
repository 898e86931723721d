import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { applyKlPenalty, createKlController, klEstimator, klPenalty } from '../../../ts/algorithms/kl';
import { Batch } from '../../../ts/batch/batch';

type Matrix = number[][];
const fixture = JSON.parse(
  readFileSync(join(__dirname, '../../fixtures/conformance/core_head.json'), 'utf8'),
);
const logProbs = (fixture.inputs.log_prob as Matrix).flat();
const refLogProbs = (fixture.inputs.ref_log_prob as Matrix).flat();

const types = ['kl', 'k1', 'abs', 'mse', 'k2', 'low_var_kl', 'k3', 'k1+', 'k3+', 'abs+', 'low_var_kl+'];
test.each(types)('klPenalty %s equals the recorded values', (type) => {
  const expected = (fixture.kl_penalty[type].value as Matrix).flat();
  const estimator = klEstimator(type);
  const float = klPenalty(type, logProbs, refLogProbs);
  expected.forEach((want, t) => {
    expect(Math.abs(estimator(logProbs[t] as number, refLogProbs[t] as number) - want)).toBeLessThan(1e-9);
    expect(float[t]).toBeCloseTo(want, 6);
  });
});

test('k3 clamps the difference and the result', () => {
  const probes = fixture.kl_penalty.clamp_probe_logprob[0] as number[];
  const expected = (fixture.kl_penalty.clamp_probe_k3_ref0 as number[][]).flat();
  for (const [i, lp] of probes.entries())
    expect(klEstimator('k3')(lp, 0)).toBeCloseTo(expected[i] as number, 9);
});

test.each(['full', 'K1', '', 'k1++', 'constructor'])('klPenalty refuses type %j', (type) => {
  expect(() => klPenalty(type, [0], [0])).toThrow(/unknown KL penalty.*low_var_kl/);
});

test('the adaptive controller follows the recorded sequence and restores', () => {
  const [name, params] = Object.entries(fixture.params.kl_penalty).find(([key]) =>
    key.startsWith('adaptive'),
  ) as [string, { init: number; target: number; horizon: number; updates: [number, number][] }];
  const options = {
    type: 'adaptive',
    klCoef: params.init,
    targetKl: params.target,
    horizon: params.horizon,
  } as const;
  const controller = createKlController(options);
  const values = params.updates.map(([kl, steps]) => {
    controller.update(kl, steps);
    return controller.value;
  });
  for (const [i, value] of values.entries()) expect(value).toBeCloseTo(fixture.kl_penalty[name][i], 12);
  const other = createKlController(options);
  other.restore(JSON.parse(JSON.stringify(controller.state())));
  expect(other.value).toBe(controller.value);
});

test('a fixed controller does not move; an adaptive one checks its options', () => {
  const controller = createKlController({ klCoef: 0.1 });
  controller.update(100, 1000);
  expect(controller.value).toBe(0.1);
  expect(() => createKlController({ type: 'adaptive', horizon: 0 })).toThrow(/horizon > 0/);
  expect(() => createKlController({ klCoef: Number.NaN })).toThrow(/klCoef: expected a number but got NaN/);
  expect(() => controller.restore({} as { value: number })).toThrow(/saved coefficient.*got {}/);
  expect(controller.value).toBe(0.1);
});

test('an adaptive controller steers to 0.1 over 10000 sequences unless told otherwise', () => {
  const controller = createKlController({ type: 'adaptive', klCoef: 1 });
  controller.update(0.1, 5000);
  expect(controller.value).toBe(1);
  controller.update(0.2, 5000);
  expect(controller.value).toBeCloseTo(1.1, 12);
});

test('applyKlPenalty: rewards, batch KL and the coefficient before the update', () => {
  const batch = Batch.fromSequences(
    [[1], [1]],
    [
      [2, 3],
      [4, 5, 6],
    ],
    {
      responseMask: [1, 1, 1, 0, 1],
      tokenScores: [0, 1, 0, 0, 2],
      oldLogProbs: [-1, -1, -2, -9, -2],
      refLogProbs: [-2, -1, -1, 0, -3],
    },
  );
  const controller = createKlController({ type: 'adaptive', klCoef: 0.5, targetKl: 0.1, horizon: 10 });
  const { batch: out, metrics } = applyKlPenalty(batch, controller, 'kl');
  expect([...out.get('tokenRewards')]).toEqual([-0.5, 1, 0.5, 0, 1.5]);
  expect(metrics['actor/reward_kl_penalty']).toBeCloseTo((0.5 + 0) / 2, 6);
  expect(metrics['actor/reward_kl_penalty_coeff']).toBe(0.5);
  expect(controller.value).toBeCloseTo(0.5 * (1 + (0.2 * 2) / 10), 12);
});

test('applyKlPenalty: a batch without sequences has no KL and leaves the coefficient alone', () => {
  const batch = Batch.fromSequences([], [], { tokenScores: [], oldLogProbs: [], refLogProbs: [] });
  const controller = createKlController({ type: 'adaptive', klCoef: 0.5 });
  const { metrics } = applyKlPenalty(batch, controller, 'kl');
  expect(metrics).toEqual({ 'actor/reward_kl_penalty': 0, 'actor/reward_kl_penalty_coeff': 0.5 });
  expect(controller.value).toBe(0.5);
});
