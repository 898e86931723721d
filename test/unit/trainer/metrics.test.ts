import type { Trajectory } from '../../../ts/agent/trajectory/trajectory';
import { deriveSeed } from '../../../ts/base/seed';
import { Batch } from '../../../ts/batch/batch';
import { agentMetrics, agentTimings } from '../../../ts/trainer/metrics/agent_metrics';
import { aggregate } from '../../../ts/trainer/metrics/aggregate';
import {
  dataMetrics,
  PhaseTimer,
  rewardExtraMetrics,
  rolloutDifference,
  timingMetrics,
} from '../../../ts/trainer/metrics/metrics';

const batch = Batch.fromSequences([[1, 2], [1], [1]], [[3, 4, 5], [6], []], {
  responseMask: [1, 0, 1, 1],
  tokenScores: [0, 0, 1, 0.5],
  tokenRewards: [0, 0, 0.5, 0.5],
  advantages: [1, 99, -1, 3],
  returns: [1, 99, 2, 3],
  values: [0.5, 99, 2, 2],
  oldLogProbs: [0.5, 1, 0.25, 0.5].map(Math.log),
  rolloutLogProbs: [0.5, 0.1, 0.5, 0.25].map(Math.log),
});

test('dataMetrics', () => {
  const metrics = dataMetrics(batch, { prompt: 2, response: 3 });
  expect(metrics).toMatchObject({
    'critic/score/mean': 0.75,
    'critic/score/max': 1,
    'critic/rewards/min': 0.5,
    'critic/advantages/mean': 1,
    'critic/returns/max': 3,
    'critic/values/min': 0.5,
    'response_length/mean': 4 / 3,
    'response_length/clip_ratio': 1 / 3,
    'response_length_non_aborted/mean': 2,
    'response/aborted_ratio': 1 / 3,
    'prompt_length/max': 2,
    'prompt_length/clip_ratio': 1 / 3,
  });
  // returns 1, 2, 3 (variance 1), errors 0.5, 0, 1 (variance 0.25)
  expect(metrics['critic/vf_explained_var']).toBeCloseTo(1 - 0.25 / (1 + 1e-5), 10);
});

test('one policy token explains nothing', () => {
  const one = Batch.fromSequences([[1]], [[2, 3]], {
    responseMask: [1, 0],
    tokenScores: [0, 1],
    tokenRewards: [0, 1],
    advantages: [1, 0],
    returns: [1, 0],
    values: [0, 0],
  });
  const metrics = dataMetrics(one, { prompt: 2, response: 3 });
  expect(metrics['critic/values/mean']).toBe(0);
  expect(metrics).not.toHaveProperty(['critic/vf_explained_var']);
});

test('rolloutDifference looks at policy tokens only', () => {
  const metrics = rolloutDifference(batch);
  expect(metrics['training/rollout_probs_diff_max']).toBeCloseTo(0.25, 6);
  expect(metrics['training/rollout_probs_diff_mean']).toBeCloseTo(0.5 / 3, 6);
  expect(metrics['training/rollout_probs_diff_std']).toBeCloseTo(0.25 / Math.sqrt(3), 6);
  expect(metrics['training/rollout_actor_probs_pearson_corr']).toBeCloseTo(-0.5, 5);
});

test('rolloutDifference of no policy token is none', () => {
  const silent = batch.withResponseMask(new Uint8Array(batch.numResponseTokens));
  expect(rolloutDifference(silent)).toEqual({});
});

test('the slowest trajectory is the one whose model and tools took longest', () => {
  const call = (prompt: number, tokens: number, seconds: number) => ({
    promptIds: new Int32Array(prompt),
    tokens: new Int32Array(tokens),
    seconds,
  });
  const trajectories = [
    { calls: [call(2, 9, 5)], toolUses: [], seconds: 90, metrics: {} },
    {
      calls: [call(3, 4, 1), call(8, 2, 2)],
      toolUses: [{ name: 'add', seconds: 3 }],
      seconds: 7,
      metrics: {},
    },
  ] as unknown as Trajectory[];
  expect(agentTimings(trajectories)).toMatchObject({
    'agent_loop/generate_sequences/max': 5,
    'agent_loop/slowest/generate_sequences': 3,
    'agent_loop/slowest/tool_calls': 3,
    'agent_loop/slowest/prompt_length': 3,
    'agent_loop/slowest/response_length': 7,
  });
  expect(agentTimings([])).toEqual({});
});

test('uses of tools by name: names that a model made up are one', () => {
  const use = (name: string, error: string | null = null) => ({ name, error, seconds: 1 });
  const long = 'x'.repeat(65);
  const trajectories = [
    {
      calls: [{}, {}],
      toolUses: [use('add'), use('no such tool', 'none'), use('add', 'late')],
      error: null,
      metrics: { found: 3 },
    },
    { calls: [{}], toolUses: [use(long, 'none'), use(long.slice(1))], error: 'it broke', metrics: {} },
  ] as unknown as Trajectory[];
  expect(agentMetrics(trajectories)).toEqual({
    'agent/failed': 1,
    'agent/model_calls/mean': 1.5,
    'agent/model_calls/max': 2,
    'agent/model_calls/min': 1,
    'tool/add/calls': 2,
    'tool/add/errors': 1,
    'tool/unknown/calls': 2,
    'tool/unknown/errors': 2,
    [`tool/${long.slice(1)}/calls`]: 1,
    [`tool/${long.slice(1)}/errors`]: 0,
    'found/mean': 3,
    'found/max': 3,
    'found/min': 3,
  });
});

test('an empty batch and extras without numbers give no metric', () => {
  expect(rewardExtraMetrics({ pred: ['a', 'b'], acc: [true, undefined] })).toEqual({
    'reward/acc/mean': 1,
    'reward/acc/max': 1,
    'reward/acc/min': 1,
  });
});

test('timingMetrics', async () => {
  const timer = new PhaseTimer();
  await timer.time('step', () => timer.time('gen', () => new Promise((done) => setTimeout(done, 20))));
  const metrics = timingMetrics(timer, batch, 2);
  expect(metrics['timing_s/gen']).toBeGreaterThan(0.015);
  expect(metrics['timing_per_token_ms/gen']).toBeCloseTo(((metrics['timing_s/gen'] as number) * 1000) / 4, 9);
  expect(metrics['perf/throughput']).toBeCloseTo(8 / (2 * (metrics['timing_s/step'] as number)), 9);
  expect(metrics['perf/total_num_tokens']).toBe(8);
});

test('a phase that runs twice adds up', async () => {
  const now = jest.spyOn(performance, 'now');
  for (const at of [0, 1000, 5000, 7500]) now.mockReturnValueOnce(at);
  const timer = new PhaseTimer();
  await timer.time('gen', () => undefined);
  await expect(timer.time('gen', () => Promise.reject(new Error('given up')))).rejects.toThrow('given up');
  now.mockRestore();
  expect(timer.get('gen')).toBe(3.5);
  expect(timer.metrics()).toEqual({ 'timing_s/gen': 3.5 });
});

describe('aggregate', () => {
  // The middle token of the first response is a tool's; the third response has no policy token.
  const masked = Batch.fromSequences([[1], [1], [1]], [[3, 4, 5], [6], [7]], {
    responseMask: [1, 0, 1, 1, 0],
  });
  const values = Float32Array.of(1, 99, 3, 10, 99);
  test.each([
    ['token-mean', 14 / 3],
    ['token-sum', 14],
    ['seq-mean-token-sum', 7],
    ['seq-mean-token-mean', 6],
    ['seq-mean-token-sum-norm', 0.875],
  ] as const)('%s', (mode, expected) => {
    expect(aggregate(values, masked, mode, 8)).toBeCloseTo(expected, 6);
  });

  test('without policy tokens it is 0', () => {
    expect(aggregate(values, masked.withResponseMask(new Uint8Array(5)), 'seq-mean-token-mean', 8)).toBe(0);
  });
});

test('rolloutDifference: probabilities that are all the same have no correlation', () => {
  const logProbs = new Float32Array(4).fill(Math.log(0.3));
  const same = batch
    .drop(['oldLogProbs', 'rolloutLogProbs'])
    .with({ oldLogProbs: logProbs, rolloutLogProbs: logProbs });
  expect(rolloutDifference(same)).toEqual({
    'training/rollout_probs_diff_max': 0,
    'training/rollout_probs_diff_mean': 0,
    'training/rollout_probs_diff_std': 0,
  });
});

test('deriveSeed: stable, and different for different parts', () => {
  const seeds = new Set<number>();
  for (const purpose of ['rollout', 'validation']) {
    for (let base = 0; base < 10; base++)
      for (let step = 0; step < 100; step++) seeds.add(deriveSeed(base, purpose, step));
  }
  expect(seeds.size).toBe(2000);
  expect(deriveSeed(1, 'rollout', 2)).toBe(deriveSeed(1, 'rollout', 2));
  for (const seed of seeds) expect(Number.isSafeInteger(seed) && seed >= 0).toBe(true);
});
