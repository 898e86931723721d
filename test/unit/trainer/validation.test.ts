import type { RewardFunction, RewardManager } from '../../../ts/reward/contract/types';
import { createRewardManager } from '../../../ts/reward/manager';
import type { Engines } from '../../../ts/trainer/engines';
import type { Prompt } from '../../../ts/trainer/rollout';
import { validate } from '../../../ts/trainer/validation';
import { fakeRollout } from '../../helpers/fake_rollout';
import { runConfig } from '../../helpers/fake_run';

const prompts = (count: number): Prompt[] =>
  Array.from({ length: count }, (_, i) => ({
    tokens: [i % 1000, Math.floor(i / 1000)],
    dataSource: i % 2 === 0 ? 'even' : 'odd',
    groundTruth: String(i),
    extraInfo: {},
  }));

/** Answers every prompt with one token; what it is called with is not looked at. */
const engines = {
  rollout: fakeRollout((requests) => requests.map(() => ({ tokens: [1], logProbs: [-1] }))),
  rewardModel: null,
  setPhase: () => undefined,
} as unknown as Engines;

const reward = {
  score: async (samples: readonly unknown[]) => ({
    scores: Float64Array.from(samples, (_, i) => i % 4),
    extras: { acc: samples.map((_, i) => i % 2 === 0) },
    failures: 0,
  }),
} as unknown as RewardManager;

const decoder = { decode: (tokens: ArrayLike<number>) => Array.from(tokens).join(' ') };

const run = (count: number, size: number) => {
  const config = runConfig('x', [`data.val_batch_size=${size}`]);
  return validate({ config, engines, decoder, agents: null, reward }, prompts(count), 3);
};

test('130,000 responses in one batch', async () => {
  const { rows, metrics } = await run(130_000, 130_000);
  expect(rows).toHaveLength(130_000);
  expect(rows.at(-1)).toMatchObject({
    step: 3,
    input: '999 129',
    output: '1',
    gts: '129999',
    score: 3,
    acc: false,
  });
  expect(metrics).toEqual({
    'val-core/even/acc/mean@1': 1,
    'val-aux/even/reward/mean@1': 1,
    'val-core/odd/acc/mean@1': 0,
    'val-aux/odd/reward/mean@1': 2,
  });
});

test('in several batches the metrics are those of all responses', async () => {
  const { rows, metrics } = await run(10, 4);
  expect(rows.map((row) => row.gts)).toEqual(Array.from({ length: 10 }, (_, i) => String(i)));
  // Scores begin at 0 in each batch: 0 1 2 3, 0 1 2 3, 0 1.
  expect(metrics).toMatchObject({ 'val-aux/even/reward/mean@1': 4 / 5, 'val-aux/odd/reward/mean@1': 9 / 5 });
});

test('a score beside other numbers is one of them, as the function returned it, and not that of the penalties', async () => {
  const overlong = { enable: true, len: 1, penaltyFactor: 1, maxRespLen: 1, log: false };
  const config = runConfig('x', []);
  const run = (fn: RewardFunction) =>
    validate(
      { config, engines, decoder, agents: null, reward: createRewardManager('dapo', fn, { overlong }) },
      prompts(2),
      3,
    );
  const record = await run(({ dataSource }) => (dataSource === 'even' ? { score: 2, acc: 1 } : 3));
  expect(record.metrics).toEqual({
    'val-core/even/acc/mean@1': 1,
    'val-aux/even/reward/mean@1': 1,
    'val-aux/even/score/mean@1': 2,
    'val-core/odd/acc/mean@1': 3,
    'val-aux/odd/reward/mean@1': 2,
  });
  expect(record.rows.map(({ score }) => score)).toEqual([1, 2]);
});
