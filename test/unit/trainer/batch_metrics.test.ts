import { Batch } from '../../../ts/batch/batch';
import { sequenceLengthMetrics, varianceProxyMetrics } from '../../../ts/trainer/metrics/batch_metrics';
import { dataMetrics, PhaseTimer, timingMetrics } from '../../../ts/trainer/metrics/metrics';

describe('global_seqlen', () => {
  test('one rank: everything is the total', () => {
    const metrics = sequenceLengthMetrics([3, 5, 2], 1, [[0, 1, 2]]);
    expect(metrics).toEqual({
      'global_seqlen/min': 10,
      'global_seqlen/max': 10,
      'global_seqlen/minmax_diff': 0,
      'global_seqlen/balanced_min': 10,
      'global_seqlen/balanced_max': 10,
      'global_seqlen/mean': 10,
    });
  });

  test('several ranks: contiguous parts before, the given ones after balancing', () => {
    const balanced = [
      [0, 3],
      [1, 2],
    ];
    expect(sequenceLengthMetrics([9, 8, 1, 2], 2, balanced)).toEqual({
      'global_seqlen/min': 3,
      'global_seqlen/max': 17,
      'global_seqlen/minmax_diff': 14,
      'global_seqlen/balanced_min': 9,
      'global_seqlen/balanced_max': 11,
      'global_seqlen/mean': 10,
    });
  });
});

describe('variance_proxy', () => {
  // The last token of the first response is a tool's; the third response is empty.
  const batch = Batch.fromSequences([[1], [1], [1]], [[2, 3, 4], [5], []], {
    responseMask: [1, 1, 0, 1],
    oldLogProbs: [0.5, 0.25, 0.9, 0.8].map(Math.log),
    sumPiSquared: [0.4, 0.3, 0.9, 0.7],
    advantages: [2, 2, 99, -1],
  });
  // W: 1 - 1 + 0.4 + 1 - 0.5 + 0.3 = 1.2; 1 - 1.6 + 0.7 = 0.1
  const power = (4 * 1.2 + 1 * 0.1) / 3;

  test('from entropy-like energies and advantages', () => {
    const metrics = varianceProxyMetrics(batch, 0.5);
    expect(metrics['variance_proxy/expected_w']).toBeCloseTo(1.3 / 3, 6);
    expect(metrics['variance_proxy/expected_a_squared']).toBeCloseTo(5 / 3, 6);
    expect(metrics['variance_proxy/proxy2_total_power']).toBeCloseTo(power, 6);
    expect(metrics['variance_proxy/proxy1_signal_strength']).toBe(0.25);
    expect(metrics['variance_proxy/proxy3_pure_noise']).toBeCloseTo((power - 0.25) / 2, 6);
  });

  test('noise is never negative; without an update there are no proxies 1 and 3', () => {
    expect(varianceProxyMetrics(batch, 10)['variance_proxy/proxy3_pure_noise']).toBe(0);
    expect(Object.keys(varianceProxyMetrics(batch, undefined)).sort()).toEqual([
      'variance_proxy/expected_a_squared',
      'variance_proxy/expected_w',
      'variance_proxy/proxy2_total_power',
    ]);
  });

  test('a response whose energies round to less than nothing has no power', () => {
    const certain = batch.drop('sumPiSquared').with({ sumPiSquared: [0.4, 0.3, 0.9, 0.55] });
    const metrics = varianceProxyMetrics(certain, 0);
    expect(metrics['variance_proxy/proxy2_total_power']).toBeCloseTo((4 * 1.2) / 3, 6);
    expect(metrics['variance_proxy/expected_w']).toBeCloseTo((1.2 - 0.05) / 3, 6);
  });

  test('importance weights: their mean per response in the power, each squared in expected_w', () => {
    const metrics = varianceProxyMetrics(batch.with({ rolloutIsWeights: [1, 2, 0, 3] }), 0);
    expect(metrics['variance_proxy/proxy2_total_power']).toBeCloseTo((2.25 * 4.8 + 9 * 0.1) / 3, 6);
    expect(metrics['variance_proxy/expected_w']).toBeCloseTo((0.4 + 4 * 0.8 + 9 * 0.1) / 3, 6);
  });

  // What verl's compute_variance_proxy_metrics gives.
  test.each([
    [[1, 0, 1, 1], 2.32749462, 0.84636164],
    [[1e-6, 0, 1, 1e-6], 0.2849423, 0.28212056],
  ])('tokens with importance weights of %j: those near 0 have no energy', (rolloutIsWeights, total, w) => {
    const weighted = Batch.fromSequences(
      [[1], [1]],
      [
        [2, 3],
        [4, 5],
      ],
      {
        responseMask: [1, 1, 1, 1],
        oldLogProbs: [-1, -1, -1, -1],
        sumPiSquared: [0.3, 0.3, 0.3, 0.3],
        advantages: [1, 1, 2, 2],
        rolloutIsWeights,
      },
    );
    const metrics = varianceProxyMetrics(weighted, 0.5);
    expect(metrics['variance_proxy/proxy2_total_power']).toBeCloseTo(total, 5);
    expect(metrics['variance_proxy/proxy3_pure_noise']).toBeCloseTo(total - 0.25, 5);
    expect(metrics['variance_proxy/expected_w']).toBeCloseTo(w, 5);
  });

  test('nothing without sumPiSquared or without a policy token', () => {
    expect(varianceProxyMetrics(batch.drop('sumPiSquared'), 1)).toEqual({});
    const silent = Batch.fromSequences([[1]], [[2]], {
      responseMask: [0],
      oldLogProbs: [0],
      sumPiSquared: [0],
      advantages: [0],
    });
    expect(varianceProxyMetrics(silent, 1)).toEqual({});
  });
});

test('num_turns and tool_call_counts where the batch has them', () => {
  const batch = Batch.fromSequences([[1], [1]], [[2], [3]], {
    tokenScores: [1, 0],
    tokenRewards: [1, 0],
    advantages: [1, 0],
    returns: [1, 0],
  });
  const limits = { prompt: 1, response: 1 };
  expect(Object.keys(dataMetrics(batch, limits)).filter((name) => /num_turns|tool_call/.test(name))).toEqual(
    [],
  );
  const turns = batch.with(
    { numTurns: [2, 6], numToolCalls: [0, 2] },
    { granularity: { numTurns: 'sequence', numToolCalls: 'sequence' } },
  );
  expect(dataMetrics(turns, limits)).toMatchObject({
    'num_turns/mean': 4,
    'num_turns/max': 6,
    'num_turns/min': 2,
    'training/num_turns/mean': 4,
    'training/num_turns/max': 6,
    'training/num_turns/min': 2,
    'tool_call_counts/mean': 1,
  });
});

test('generation is timed per generated token, also those that dynamic sampling left out', async () => {
  const batch = Batch.fromSequences([[1]], [[2, 3]]);
  const timer = new PhaseTimer();
  await timer.time('gen', () => new Promise((done) => setTimeout(done, 5)));
  const perToken = (metrics: Record<string, number>): number =>
    (metrics['timing_per_token_ms/gen'] as number) / (metrics['timing_s/gen'] as number);
  expect(perToken(timingMetrics(timer, batch, 1))).toBeCloseTo(500, 6);
  expect(perToken(timingMetrics(timer, batch, 1, 10))).toBeCloseTo(100, 6);
});
