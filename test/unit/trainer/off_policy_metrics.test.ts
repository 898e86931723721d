import { Batch } from '../../../ts/batch/batch';
import { offPolicyMetrics } from '../../../ts/trainer/metrics/off_policy_metrics';

/** A trajectory of two sequences, with a tool's token in the first; one of one; and one of which nothing was sampled. */
const batch = (columns: Record<string, unknown> = {}): Batch =>
  Batch.fromSequences([[1], [1], [1], [1]], [[2, 3, 4], [5, 6], [7], [8]], {
    responseMask: [1, 0, 1, 1, 1, 1, 0],
    version: Int32Array.of(5, -1, 6, 6, 7, 3, -1),
    ...columns,
  });

const summaries = (metrics: Record<string, number>) =>
  Object.fromEntries(
    ['spans', 'staleness', 'staleness_worst'].map((name) => [
      name,
      ['min', 'max', 'mean'].map((of) => metrics[`training/off_policy/trajectory_${name}/${of}`]),
    ]),
  );

test('how many weights a trajectory saw, and how old its last and first are', () => {
  const whole = batch({ trajectory: [0, 0, 1, 2] });
  expect(summaries(offPolicyMetrics(whole, 7, 1))).toEqual({
    spans: [1, 3, 2],
    staleness: [0, 4, 2],
    staleness_worst: [2, 4, 3],
  });
  expect(summaries(offPolicyMetrics(batch(), 7, 1))).toEqual({
    spans: [1, 2, 5 / 3],
    staleness: [0, 4, 5 / 3],
    staleness_worst: [1, 4, 7 / 3],
  });
});

test('weights before the first update are as old as those of the step before it', () => {
  // Step 6 makes the first new ones: versions 3 and 5 are the same.
  expect(summaries(offPolicyMetrics(batch(), 7, 6))).toEqual({
    spans: [1, 2, 5 / 3],
    staleness: [0, 2, 1],
    staleness_worst: [1, 2, 5 / 3],
  });
});

test('of a batch of which nothing was sampled nothing is said', () => {
  expect(offPolicyMetrics(batch({ responseMask: new Array(7).fill(0) }), 7, 1)).toEqual({});
});
