// Data-level tricks and everything in `trainer` that decides when something happens, over fakes.
import { existsSync, mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { registerAdvantageEstimator } from '../../ts/algorithms/advantages';
import { batchArithmetic } from '../../ts/config/config';
import { indicesByRank } from '../../ts/engine/shards';
import type { RewardFunction } from '../../ts/reward/contract/types';
import { expertsOf, FakeEngines, fakeData, read, runConfig, runDirectory, trainer } from './fake_run';

const lines = (directory: string, file = 'metrics.jsonl'): Record<string, number>[] =>
  read(directory, file)
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
const steps = (directory: string): Record<string, number>[] =>
  lines(directory).filter((line) => 'critic/score/mean' in line);
const checkpoints = (directory: string): string[] =>
  readdirSync(directory)
    .filter((name) => name.startsWith('global_step'))
    .sort();

/** Right in one of five responses: of two prompts out of five, all four responses are alike. */
const rareReward: RewardFunction = ({ responseTokens }) => {
  const right = (responseTokens[0] as number) < 2;
  return { score: right ? 1 : 0, acc: right, length: responseTokens.length };
};

/** Runs to the end, then again with a death at every `stride`-th call: metrics and weights must not tell. */
async function expectNoTrace(overrides: string[], reward: RewardFunction, stride: number): Promise<string> {
  const whole = trainer({ overrides, options: { reward } });
  await whole.trainer.fit();
  const metrics = read(whole.directory, 'metrics.jsonl');
  for (let deadAt = 1; deadAt < whole.engines.calls.length - 1; deadAt += stride) {
    const directory = runDirectory();
    const dying = new FakeEngines();
    dying.failAt(deadAt, new Error('killed'));
    const killed = trainer({ directory, overrides, engines: dying, options: { reward } });
    await expect(killed.trainer.fit()).rejects.toThrow('killed');
    const resumed = trainer({ directory, overrides, options: { reward } });
    await resumed.trainer.fit();
    expect(read(directory, 'metrics.jsonl')).toBe(metrics);
    expect(resumed.engines.weights).toBe(whole.engines.weights);
    rmSync(directory, { recursive: true });
  }
  return whole.directory;
}

describe('router replay', () => {
  const mode = 'actor_rollout_ref.actor.megatron.router_replay.mode';
  const one = ['trainer.total_training_steps=1', 'trainer.val_before_train=false'];

  test.each([
    ['disabled', [], {}],
    ['R2', [], { recordExperts: true }],
    ['R3', ['actor_rollout_ref.rollout.enable_rollout_routing_replay=true'], { replayExperts: true }],
  ])('%s', async (name, more, asked) => {
    const run = trainer({ overrides: [...one, `${mode}=${name}`, ...more], options: { reward: rareReward } });
    await run.trainer.fit();
    const { logProbOptions, updateOptions, updates } = run.engines;
    const replays = (options: unknown) =>
      Object.entries(options as object).filter(([key]) => /Experts$/.test(key));
    expect(Object.fromEntries(replays(logProbOptions))).toEqual(asked);
    expect(replays(updateOptions)).toEqual(name === 'disabled' ? [] : [['replayExperts', true]]);
    const [batch] = updates;
    expect(batch?.has('routedExperts')).toBe(name === 'R2');
    if (batch && name === 'R2') expect(batch.get('routedExperts')).toEqual(expertsOf(batch));
  });
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

describe('metrics of a step', () => {
  const once = ['trainer.total_training_steps=1', 'trainer.val_before_train=false'];

  test('global_seqlen: tokens of the parts that the ranks get, beside those in the order of the data', async () => {
    const engines = new FakeEngines();
    engines.dataParallelSize = 4;
    const run = trainer({ overrides: [...once, 'trainer.seed=3'], engines });
    await run.trainer.fit();
    const batch = engines.updates[0]!;
    const sums = (parts: number[][]): number[] =>
      parts.map((part) => part.reduce((sum, i) => sum + (batch.sequenceLens[i] as number), 0));
    const contiguous = sums([
      [0, 1],
      [2, 3],
      [4, 5],
      [6, 7],
    ]);
    const balanced = sums(indicesByRank(batch, 4));
    expect([...balanced].sort()).not.toEqual([...contiguous].sort());
    expect(steps(run.directory)[0]).toMatchObject({
      'global_seqlen/min': Math.min(...contiguous),
      'global_seqlen/max': Math.max(...contiguous),
      'global_seqlen/balanced_min': Math.min(...balanced),
      'global_seqlen/balanced_max': Math.max(...balanced),
      'global_seqlen/mean': batch.numTokens / 4,
    });
  });

  test('actor/entropy is aggregated as the loss is', async () => {
    const mode = 'actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum';
    const run = trainer({ overrides: [...once, mode] });
    await run.trainer.fit();
    const batch = run.engines.updates[0]!;
    const total = batch.get('entropy').reduce((sum, x) => sum + x, 0);
    expect(steps(run.directory)[0]?.['actor/entropy']).toBeCloseTo(total / batch.size, 6);
  });
});

test('each prompt is decoded once, whatever the number of its responses', async () => {
  const decoded: string[] = [];
  const data = async () => ({
    ...fakeData(),
    decoder: {
      decode: (tokens: ArrayLike<number>, { skipSpecialTokens }: { skipSpecialTokens: boolean }) => {
        const text = Array.from(tokens).join(' ');
        if (!skipSpecialTokens) decoded.push(text);
        return text;
      },
    },
  });
  const prompts: string[] = [];
  const reward: RewardFunction = ({ prompt }) => {
    prompts.push(prompt);
    return 1;
  };
  const overrides = [
    'trainer.total_training_steps=1',
    'trainer.val_before_train=false',
    'trainer.test_freq=-1',
    'logging.tokens.samples=0',
  ];
  await trainer({ overrides, options: { data, reward } }).trainer.fit();
  expect(decoded).toEqual(['1', '3']);
  expect(prompts).toEqual(['1', '1', '1', '1', '3', '3', '3', '3']);
});

test('an estimator of one’s own trains under its name; without it the configuration names those there are', async () => {
  const overrides = ['algorithm.adv_estimator=twice_the_score', 'trainer.total_training_steps=1'];
  expect(() => runConfig('x', overrides)).toThrow(
    /adv_estimator: expected one of gae, .* got "twice_the_score"/,
  );
  registerAdvantageEstimator('twice_the_score', ({ offsets, tokenRewards }) => {
    const advantages = new Float64Array(tokenRewards.length);
    for (let i = 0; i + 1 < offsets.length; i++) {
      const [start, end] = [offsets[i] as number, offsets[i + 1] as number];
      advantages.fill(2 * (tokenRewards[end - 1] as number), start, end);
    }
    return { advantages, returns: advantages };
  });
  const run = trainer({ overrides });
  await run.trainer.fit();
  const batch = run.engines.updates[0]!;
  for (let i = 0; i < batch.size; i++) {
    const expected = 2 * (batch.get('score')[i] as number);
    for (const advantage of batch.row('advantages', i) as Float32Array)
      expect(advantage).toBeCloseTo(expected, 6);
  }
  expect(() =>
    registerAdvantageEstimator('twice_the_score', () => ({ advantages: [], returns: [] })),
  ).toThrow(/another estimator is already registered/);
});

describe('when a run ends, validates and saves', () => {
  test('total_epochs counts passes over the prompts; total_training_steps overrides it', async () => {
    const byEpochs = trainer({ overrides: ['trainer.total_epochs=3'] });
    await expect(byEpochs.trainer.fit()).resolves.toMatchObject({ step: 9 });
    expect(steps(byEpochs.directory).map((line) => line['training/epoch'])).toEqual([
      0, 0, 0, 1, 1, 1, 2, 2, 2,
    ]);
    for (const total of [1, 8]) {
      const overrides = ['trainer.total_epochs=2', `trainer.total_training_steps=${total}`];
      await expect(trainer({ overrides }).trainer.fit()).resolves.toMatchObject({ step: total });
    }
  });

  test.each([
    [
      ['trainer.save_freq=2', 'trainer.test_freq=3'],
      [2, 4, 5],
      [0, 3, 5],
    ],
    [['trainer.save_freq=-1', 'trainer.test_freq=-1'], [], [0]],
    [['trainer.save_freq=10', 'trainer.val_before_train=false', 'trainer.test_freq=10'], [5], [5]],
  ])('%j', async (overrides, saved, validated) => {
    const run = trainer({ overrides: [...overrides, 'trainer.total_training_steps=5'] });
    await run.trainer.fit();
    expect(checkpoints(run.directory)).toEqual(saved.map((step) => `global_step_${step}`));
    const found = lines(run.directory).flatMap((line) =>
      'val-core/fake/acc/mean@1' in line ? [line['step']] : [],
    );
    expect(found).toEqual(validated);
  });

  test('critic_warmup: the steps before it update the critic only', async () => {
    const overrides = [
      'algorithm.adv_estimator=gae',
      'trainer.total_training_steps=4',
      'trainer.critic_warmup=3',
    ];
    const run = trainer({ overrides });
    await run.trainer.fit();
    expect(steps(run.directory).map((line) => 'actor/pg_loss' in line)).toEqual([false, false, true, true]);
    expect(steps(run.directory).every((line) => 'critic/vf_loss' in line)).toBe(true);
  });

  test('dumps: all generations of every step, and of every validation', async () => {
    const dump = runDirectory();
    const overrides = [
      `trainer.rollout_data_dir=${join(dump, 'rollout')}`,
      `trainer.validation_data_dir=${join(dump, 'validation')}`,
      'trainer.total_training_steps=2',
      'trainer.test_freq=2',
    ];
    await trainer({ overrides, options: { reward: rareReward } }).trainer.fit();
    expect(readdirSync(join(dump, 'rollout')).sort()).toEqual(['1.jsonl', '2.jsonl']);
    expect(readdirSync(join(dump, 'validation')).sort()).toEqual(['0.jsonl', '2.jsonl']);
    const rows = lines(dump, 'rollout/2.jsonl');
    expect(rows).toHaveLength(8);
    expect(Object.keys(rows[0]!)).toEqual(['step', 'input', 'output', 'gts', 'score', 'acc', 'length']);
    expect(lines(dump, 'validation/0.jsonl')).toHaveLength(3);
  });

  test('val_only after training validates the checkpoint', async () => {
    const overrides = ['trainer.total_training_steps=2', 'trainer.save_freq=2'];
    const first = trainer({ overrides });
    await first.trainer.fit();
    const again = trainer({
      directory: first.directory,
      overrides: [...overrides, 'trainer.val_only=true'],
    });
    await expect(again.trainer.fit()).resolves.toMatchObject({ step: 2, finalModel: null });
    expect(again.engines.weights).toBe(first.engines.weights);
    expect(again.engines.calls).toEqual(['generate', 'close']);
  });
});

describe('what is deleted', () => {
  const keep = ['trainer.save_freq=1', 'trainer.max_actor_ckpt_to_keep=2', 'trainer.val_before_train=false'];

  test('all but the newest checkpoints, and nothing else', async () => {
    const directory = runDirectory();
    const elsewhere = runDirectory();
    writeFileSync(join(elsewhere, 'precious'), '');
    writeFileSync(join(directory, 'global_step_notes.txt'), '');
    mkdirSync(join(directory, 'global_step_1_backup'));
    symlinkSync(elsewhere, join(directory, 'linked'));
    const run = trainer({ directory, overrides: [...keep, 'trainer.total_training_steps=4'] });
    await run.trainer.fit();
    expect(checkpoints(directory)).toEqual([
      'global_step_1_backup',
      'global_step_3',
      'global_step_4',
      'global_step_notes.txt',
    ]);
    expect(existsSync(join(elsewhere, 'precious'))).toBe(true);
  });

  test('resuming from a path leaves the other run as it is', async () => {
    const first = trainer({ overrides: [...keep, 'trainer.total_training_steps=2'] });
    await first.trainer.fit();
    const from = join(first.directory, 'global_step_1');
    const overrides = [
      ...keep,
      'trainer.total_training_steps=4',
      'trainer.resume_mode=resume_path',
      `trainer.resume_from_path=${from}`,
    ];
    const second = trainer({ overrides });
    await second.trainer.fit();
    expect(checkpoints(first.directory)).toEqual(['global_step_1', 'global_step_2']);
    expect(checkpoints(second.directory)).toEqual(['global_step_3', 'global_step_4']);
  });

  test('a checkpoint directory that something else wrote stops the run before it starts', async () => {
    const directory = runDirectory();
    mkdirSync(join(directory, 'global_step_2'));
    writeFileSync(join(directory, 'global_step_2', 'model_world_size_1_rank_0.pt'), '');
    const run = trainer({ directory, overrides: keep });
    await expect(run.trainer.fit()).rejects.toMatchObject({
      code: 'IO',
      message: expect.stringMatching(/global_step_2 is not a checkpoint of Troupe .* move it away/),
    });
    expect(run.engines.calls).toEqual([]);
    expect(readdirSync(join(directory, 'global_step_2'))).toEqual(['model_world_size_1_rank_0.pt']);
  });

  test('a checkpoint reached by a link: the link goes, what it points to stays', async () => {
    const first = trainer({ overrides: [...keep, 'trainer.total_training_steps=1'] });
    await first.trainer.fit();
    const directory = runDirectory();
    symlinkSync(join(first.directory, 'global_step_1'), join(directory, 'global_step_1'));
    const second = trainer({ directory, overrides: [...keep, 'trainer.total_training_steps=3'] });
    await second.trainer.fit();
    expect(checkpoints(directory)).toEqual(['global_step_2', 'global_step_3']);
    expect(existsSync(join(first.directory, 'global_step_1', 'actor', 'weights'))).toBe(true);
  });
});

describe('resume_mode', () => {
  test('auto starts from nothing where there is nothing', async () => {
    await expect(
      trainer({ overrides: ['trainer.total_training_steps=1'] }).trainer.fit(),
    ).resolves.toMatchObject({ step: 1 });
  });

  test.each([
    [['trainer.resume_mode=resume_path'], /resume_from_path: expected a checkpoint directory/],
    [
      ['trainer.resume_from_path=x/global_step_1'],
      /resume_from_path: is given, but trainer\.resume_mode is auto/,
    ],
  ])('%j is refused', (overrides, message) => {
    expect(() => runConfig('x', overrides)).toThrow(message);
  });

  test('a path that holds no checkpoint is named', async () => {
    const overrides = ['trainer.resume_mode=resume_path', 'trainer.resume_from_path=nowhere/global_step_7'];
    const run = trainer({ overrides });
    await expect(run.trainer.fit()).rejects.toThrow(/nowhere\/global_step_7 is not a checkpoint/);
    expect(run.engines.calls).toEqual([]);
  });
});
