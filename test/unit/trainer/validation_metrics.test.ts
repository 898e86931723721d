import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Mt19937 } from '../../../ts/base/mt19937';
import { processValidationMetrics, validationMetrics } from '../../../ts/trainer/metrics/validation_metrics';

const recorded = JSON.parse(
  readFileSync(join(__dirname, '../../fixtures/conformance/misc_head.json'), 'utf8'),
).val_metrics;

test('equals the recorded metrics, bootstrap included', () => {
  const { data_sources, uids, infos } = recorded.in;
  const result = processValidationMetrics(data_sources, uids, infos);
  for (const [source, variables] of Object.entries(
    recorded.out as Record<string, Record<string, Record<string, number>>>,
  )) {
    expect(Object.keys(result[source] ?? {}).sort()).toEqual(Object.keys(variables).sort());
    for (const [variable, metrics] of Object.entries(variables)) {
      expect(Object.keys(result[source]?.[variable] ?? {}).sort()).toEqual(Object.keys(metrics).sort());
      for (const [name, value] of Object.entries(metrics)) {
        expect(result[source]?.[variable]?.[name]).toBeCloseTo(value, 12);
      }
    }
  }
});

test('names: core is acc, or reward where there is none', () => {
  const metrics = validationMetrics(['a', 'a', 'b', 'b'], [1, 2, 3, 3], {
    reward: [1, 0, 0.5, 0],
    acc: [true, false, undefined, undefined],
    pred: ['x', 'y', 'x', 'x'],
  });
  expect(metrics['val-core/a/acc/mean@1']).toBe(0.5);
  // Of one response to a prompt there is nothing to draw from.
  expect(Object.keys(metrics).filter((name) => name.includes('/a/acc/'))).toEqual(['val-core/a/acc/mean@1']);
  expect(metrics['val-aux/a/reward/mean@1']).toBe(0.5);
  expect(metrics['val-core/b/reward/mean@2']).toBe(0.25);
  expect(metrics['val-core/b/reward/best@2/mean']).toBeGreaterThan(0.25);
  expect(metrics['val-core/b/reward/best@2/std']).toBeGreaterThan(0);
  expect(metrics['val-core/b/reward/maj@2/std']).toBeGreaterThan(0);
  expect(metrics['val-aux/b/reward/std@2']).toBe(0.25);
  expect(metrics['val-aux/b/reward/worst@2/mean']).toBeLessThan(0.25);
  expect(metrics).not.toHaveProperty('val-core/b/acc/mean@2');
});

// What verl's process_validation_metrics gives.
test('a prediction of true is one of 1', () => {
  const of = (acc: number[]) =>
    processValidationMetrics(Array(5).fill('a'), Array(5).fill('u'), { acc, pred: [true, 1, 1, 1, 2] })[
      'a'
    ]?.['acc'];
  expect(of([1, 0, 0, 0, 1])).toMatchObject({
    'maj@2/mean': 0.407,
    'maj@4/mean': 0.356,
    'maj@5/mean': 0.293,
  });
  expect(of([0, 1, 1, 1, 0])).toMatchObject({
    'maj@2/mean': 0.593,
    'maj@4/mean': 0.644,
  });
});

test('prompts with as many responses share their bootstrap resamples, which are drawn once', () => {
  const draws = jest.spyOn(Mt19937.prototype, 'nextBelow');
  const prompts = 50;
  const uids = Array.from({ length: 2 * prompts }, (_, i) => Math.floor(i / 2));
  validationMetrics(
    uids.map(() => 'a'),
    uids,
    { reward: uids.map((_, i) => i % 3), acc: uids.map((_, i) => i % 2) },
  );
  // 1000 resamples of two responses.
  expect(draws).toHaveBeenCalledTimes(2000);
  draws.mockRestore();
});

test('prompts with several responses have metrics that others have not: means are over those that have them', () => {
  const metrics = validationMetrics(['s', 's', 's'], ['a', 'a', 'b'], { acc: [1, 0, 1] });
  expect(metrics['val-aux/s/acc/mean@1']).toBe(1);
  expect(metrics['val-aux/s/acc/std@2']).toBe(0.5);
});
