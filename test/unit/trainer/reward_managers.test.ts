import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { registerRewardManager } from '../../../ts/reward/contract/manager_registry';
import { createRewardManager } from '../../../ts/reward/manager';
import { lengthReward, read, runDirectory, trainer } from '../../helpers/fake_run';

describe('reward managers', () => {
  const steps = ['trainer.total_training_steps=1', 'trainer.val_before_train=false'];

  test('dapo: the penalty reaches scores, metrics and dumps', async () => {
    const run = trainer({
      overrides: [
        ...steps,
        'reward.reward_manager.name=dapo',
        'reward.reward_kwargs.overlong_buffer_cfg={enable: true, len: 4, log: true}',
      ],
      options: { reward: () => ({ score: 1, acc: true }) },
    });
    await run.trainer.fit();
    const rows = read(run.directory, 'samples/1.jsonl').trim().split('\n');
    for (const row of rows.map((line) => JSON.parse(line))) {
      // A buffer of all 4 tokens: every token costs a quarter.
      expect(row.score).toBeCloseTo(1 - row.output.split(' ').length / 4, 12);
      expect(row.overlong_reward).toBeCloseTo(row.score - 1, 12);
      expect([row.acc, row.overlong]).toEqual([true, true]);
    }
    const metrics = JSON.parse(read(run.directory, 'metrics.jsonl'));
    expect(metrics['reward/acc/mean']).toBe(1);
    expect(metrics['reward/overlong/max']).toBe(1);
    expect(metrics['critic/score/mean']).toBeCloseTo(1 + metrics['reward/overlong_reward/mean'], 6);
  });

  test('batch and managers of a module; closed at the end', async () => {
    const batch = trainer({
      overrides: [...steps, 'reward.reward_manager.name=batch'],
      options: { reward: undefined, batchReward: (samples) => samples.map(() => 3) },
    });
    await batch.trainer.fit();
    expect(JSON.parse(read(batch.directory, 'metrics.jsonl'))['critic/score/mean']).toBe(3);

    const module = join(runDirectory(), 'manager.cjs');
    writeFileSync(
      module,
      `exports.closed = 0;
       exports.mine = (fn, { kwargs }) => ({
         score: async (samples) => ({ scores: samples.map(() => kwargs.x), extras: {}, failures: 0 }),
         close: () => { exports.closed++; },
       });`,
    );
    const own = trainer({
      overrides: [
        ...steps,
        `reward.reward_manager={source: importlib, module: {path: ${module}, name: mine}}`,
        'reward.custom_reward_function.reward_kwargs={x: 5}',
      ],
    });
    await own.trainer.fit();
    expect(JSON.parse(read(own.directory, 'metrics.jsonl'))['critic/score/mean']).toBe(5);
    expect(require(module).closed).toBe(1);
  });

  test('a manager that fails to close after the run fails no run: it is said', async () => {
    registerRewardManager('closes badly', (_, options) => ({
      ...createRewardManager('naive', () => 1, options),
      close: () => {
        throw new Error('the file is gone');
      },
    }));
    const said: string[] = [];
    const run = trainer({
      overrides: [...steps, "reward.reward_manager.name='closes badly'"],
      options: { log: (line) => said.push(line) },
    });
    expect(await run.trainer.fit()).toMatchObject({ interrupted: false });
    expect(said).toContainEqual(
      'the reward manager failed to close, after the run was complete: the file is gone',
    );
  });

  test.each([
    ['batch', {}, /the manager batch needs a function that scores a batch/],
    ['prime', { reward: lengthReward }, /prime runs reward functions in processes of their own/],
  ])('%s without its function does not start', async (name, options, message) => {
    const run = trainer({
      overrides: [`reward.reward_manager.name=${name}`],
      options: { reward: undefined, ...options },
    });
    await expect(run.trainer.fit()).rejects.toThrow(message);
    expect(run.engines.calls).toEqual([]);
  });
});
