// Which responses a step learns from, and with which rewards, over fakes.
import { batchArithmetic } from '../../../ts/config/config';
import type { RewardFunction } from '../../../ts/reward/contract/types';
import { expectNoTrace, rareReward, runConfig, steps, trainer } from '../../helpers/fake_run';

test.each([
  ['in batches', []],
  ['ahead of the steps', ['trainer.v1.trainer_mode=colocate_async']],
])('rollout.max_model_len bounds responses that come %s', async (_, mode) => {
  const most = async (...overrides: string[]): Promise<number[]> => {
    const run = trainer({ overrides: ['trainer.total_training_steps=2', ...mode, ...overrides] });
    await run.trainer.fit();
    return [...new Set(run.engines.mostNewTokens)];
  };
  expect(await most()).toEqual([4]);
  // Prompts have one token.
  expect(await most('actor_rollout_ref.rollout.max_model_len=3')).toEqual([2]);
});

describe('dynamic sampling', () => {
  const dapo = [
    'algorithm.filter_groups.enable=true',
    'algorithm.filter_groups.metric=acc',
    'trainer.total_training_steps=5',
    'trainer.save_freq=2',
    'trainer.val_before_train=false',
  ];

  test('trains on prompts whose responses differ, also across the ends of epochs', async () => {
    const run = trainer({ overrides: dapo, options: { reward: rareReward } });
    await run.trainer.fit();
    expect(run.engines.updates).toHaveLength(5);
    for (const batch of run.engines.updates) {
      expect(batch.size).toBe(8);
      const uid = batch.get('uid') as string[];
      const score = batch.get('score') as number[];
      const groups = [...new Set(uid)].map((id) => new Set(score.filter((_, i) => uid[i] === id)));
      expect(groups.map((scores) => scores.size)).toEqual([2, 2]);
    }
    const batches = steps(run.directory).map((line) => line['train/num_gen_batches'] as number);
    const total = batches.reduce((a, b) => a + b, 0);
    expect(total).toBeGreaterThan(5);
    // Three generation batches are one epoch of the fake data.
    expect(steps(run.directory).at(-1)?.['training/epoch']).toBe(Math.floor((total - 1) / 3));
    expect(run.engines.calls.filter((name) => name === 'generate')).toHaveLength(total);
  });

  test('killed at every second call and resumed: the same prompts, the same numbers', async () => {
    await expectNoTrace(dapo, rareReward, 2);
  });

  test('gives up after max_num_gen_batches, and over a reward that is constant', async () => {
    const limited = [...dapo, 'algorithm.filter_groups.max_num_gen_batches=2'];
    const constant: RewardFunction = () => 1;
    const run = (overrides: string[]) => trainer({ overrides, options: { reward: constant } }).trainer.fit();
    await expect(run(limited)).rejects.toThrow(/4 prompts in 2 generation batches only 0/);
    await expect(run(dapo)).rejects.toThrow(/none of the last pass over the data/);
  });

  test('its sizes are announced', () => {
    const overrides = [...dapo, 'data.gen_batch_size=6', 'algorithm.filter_groups.max_num_gen_batches=10'];
    expect(batchArithmetic(runConfig('x', overrides))).toContain(
      'dynamic sampling: generation batches of 6 prompts until 2 have responses that differ in acc, at most 10',
    );
  });

  test('remax: baselines are those of the prompts that stayed', async () => {
    const overrides = [...dapo, 'algorithm.adv_estimator=remax'];
    const run = trainer({ overrides, options: { reward: rareReward } });
    await run.trainer.fit();
    for (const batch of run.engines.updates) {
      const uid = batch.get('uid') as string[];
      const baselines = batch.get('rewardBaselines') as number[];
      uid.forEach((id, i) => {
        expect(baselines[i]).toBe(baselines[uid.indexOf(id)]);
      });
    }
  });

  test('the metric may be anything that the reward function returns', () => {
    const config = runConfig('x', [...dapo, 'algorithm.filter_groups.metric=format']);
    expect(config.algorithm.filter_groups.metric).toBe('format');
  });

  test.each([
    [['algorithm.filter_groups.enable=true'], /filter_groups\.metric: expected acc, score/],
    [
      [...dapo, 'algorithm.filter_groups.metric=seq_final_reward', 'algorithm.use_kl_in_reward=true'],
      /filter_groups\.metric: with use_kl_in_reward/,
    ],
    [['data.gen_batch_size=6'], /data\.gen_batch_size: 6 prompts differ .*filter_groups\.enable=true/],
  ])('%j is refused', (overrides, message) => {
    expect(() => runConfig('x', overrides)).toThrow(message);
  });
});

describe('PF-PPO', () => {
  const pfPpo = [
    'algorithm.adv_estimator=gae',
    'algorithm.use_pf_ppo=true',
    'trainer.total_training_steps=4',
    'trainer.save_freq=1',
  ];

  test('critic and actor see a resample; the metrics are those of the batch', async () => {
    const plain = trainer({ overrides: ['algorithm.adv_estimator=gae', 'trainer.total_training_steps=1'] });
    await plain.trainer.fit();
    const run = trainer({ overrides: [...pfPpo, 'trainer.total_training_steps=1'] });
    await run.trainer.fit();
    const [all, drawn] = [plain.engines.updates[0]!, run.engines.updates[0]!];
    expect(drawn.size).toBe(all.size);
    const responses = Array.from({ length: all.size }, (_, i) => String(all.response(i)));
    const rows = Array.from({ length: drawn.size }, (_, i) => responses.indexOf(String(drawn.response(i))));
    expect(rows).not.toContain(-1);
    expect(new Set(rows).size).toBeLessThan(all.size);
    // Advantages are those of the whole batch: what is drawn keeps its own.
    rows.forEach((row, i) => {
      expect(drawn.row('advantages', i)).toEqual(all.row('advantages', row));
    });
    const metrics = steps(run.directory)[0];
    expect(metrics?.['pf_ppo/kept_ratio']).toBe(new Set(rows).size / all.size);
    expect(metrics?.['critic/score/mean']).toBe(steps(plain.directory)[0]?.['critic/score/mean']);
  });

  test('draws the same after resuming', async () => {
    await expectNoTrace(pfPpo, rareReward, 4);
  });

  test('is for gae only', () => {
    expect(() => runConfig('x', ['algorithm.use_pf_ppo=true'])).toThrow(/use_pf_ppo: .* gae, but it is grpo/);
  });
});

describe('gdpo', () => {
  const gdpo = [
    'algorithm.adv_estimator=gdpo',
    'algorithm.gdpo_reward_keys=[acc, length]',
    'algorithm.gdpo_reward_weights=[1, 0.5]',
    'trainer.total_training_steps=1',
    'trainer.val_before_train=false',
  ];
  const mean = (values: number[]): number => values.reduce((a, b) => a + b, 0) / values.length;

  test('combines the named rewards, normalised one by one', async () => {
    const reward: RewardFunction = ({ responseTokens }) => {
      const even = (responseTokens[0] as number) % 2 === 0;
      return { score: 0, acc: even, length: responseTokens.length };
    };
    const run = trainer({ overrides: gdpo, options: { reward } });
    await run.trainer.fit();
    const batch = run.engines.updates[0]!;
    const uid = batch.get('uid') as string[];
    const rewards = batch.get('rewardComponents') as { acc: number; length: number }[];
    const normalised = (key: 'acc' | 'length'): number[] =>
      rewards.map((row, i) => {
        const group = rewards.filter((_, j) => uid[j] === uid[i]).map((other) => other[key]);
        const squares = group.reduce((sum, x) => sum + (x - mean(group)) ** 2, 0);
        return (row[key] - mean(group)) / (Math.sqrt(squares / (group.length - 1)) + 1e-6);
      });
    const [acc, length] = [normalised('acc'), normalised('length')];
    const tokens = [...batch.responseLens].flatMap((count, i) =>
      new Array<number>(count).fill((acc[i] as number) + 0.5 * (length[i] as number)),
    );
    const variance = tokens.reduce((sum, x) => sum + (x - mean(tokens)) ** 2, 0) / (tokens.length - 1);
    batch.get('advantages').forEach((advantage, t) => {
      expect(advantage).toBeCloseTo(((tokens[t] as number) - mean(tokens)) / Math.sqrt(variance + 1e-8), 5);
    });
    const accs = rewards.map((row) => row.acc);
    expect(steps(run.directory)[0]).toMatchObject({
      'gdpo/acc/mean': mean(accs),
      'gdpo/acc/std': Math.sqrt(mean(accs.map((x) => (x - mean(accs)) ** 2))),
      'gdpo/acc/max': 1,
      'gdpo/acc/min': 0,
      'gdpo/length/max': Math.max(...batch.responseLens),
    });
  });

  test('names the response and the reward that is missing', async () => {
    let calls = 0;
    const reward: RewardFunction = () =>
      ++calls === 6 ? { score: 1, acc: 1 } : { score: 1, acc: 1, length: 2 };
    await expect(trainer({ overrides: gdpo, options: { reward } }).trainer.fit()).rejects.toMatchObject({
      code: 'REWARD_FAILED',
      message: expect.stringMatching(
        /gdpo_reward_keys .* 'length', but it returned only score, acc for response 5/,
      ),
    });
  });

  test('a response whose reward failed counts 0 with on_error zero', async () => {
    let calls = 0;
    const reward: RewardFunction = (sample) => {
      if (++calls === 2) throw new Error('no answer');
      return rareReward(sample);
    };
    const run = trainer({ overrides: [...gdpo, 'reward.on_error=zero'], options: { reward } });
    await run.trainer.fit();
    const rewards = run.engines.updates[0]!.get('rewardComponents') as unknown[];
    expect(rewards[1]).toEqual({ acc: 0, length: 0 });
    expect(steps(run.directory)[0]?.['reward/failures']).toBe(1);
  });

  test.each([
    [['algorithm.adv_estimator=gdpo'], /gdpo_reward_keys: adv_estimator gdpo expects the names/],
    [
      [...gdpo, 'algorithm.gdpo_reward_weights=[1]'],
      /gdpo_reward_weights: expected one weight .* 2 .*, got 1/,
    ],
    [[...gdpo, 'algorithm.use_kl_in_reward=true'], /use_kl_in_reward: .* would be lost/],
  ])('%j is refused', (overrides, message) => {
    expect(() => runConfig('x', overrides)).toThrow(message);
  });
});
