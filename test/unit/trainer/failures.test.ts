import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { WorkerDiedError } from '../../../ts/errors';
import { registerRewardManager } from '../../../ts/reward/contract/manager_registry';
import { createRewardManager } from '../../../ts/reward/manager';
import { FakeEngines, lengthReward, read, runDirectory, trainer } from '../../helpers/fake_run';

describe('failures', () => {
  test('data that cannot be read: the reward manager is closed', async () => {
    let closed = 0;
    registerRewardManager('counts closes', (_, options) => ({
      ...createRewardManager('naive', lengthReward, options),
      close: () => {
        closed++;
      },
    }));
    const { trainer: run } = trainer({
      overrides: ["reward.reward_manager.name='counts closes'"],
      options: {
        data: async () => {
          throw new Error('no such file');
        },
      },
    });
    await expect(run.fit()).rejects.toThrow('no such file');
    expect(closed).toBe(1);
  });

  test('a dead worker: the error passes through and everything is closed', async () => {
    const engines = new FakeEngines();
    const death = new WorkerDiedError('rank 0 died', {
      rank: 0,
      phase: 'gen',
      exitCode: null,
      signal: 'SIGKILL',
    });
    engines.failAt(3, death);
    engines.closeError = new Error('close failed too');
    await expect(trainer({ engines }).trainer.fit()).rejects.toBe(death);
    expect(engines.calls.at(-1)).toBe('close');
  });

  test('a disk that is full while saving: NO_SPACE, the earlier checkpoint stays', async () => {
    const overrides = [
      'trainer.total_training_steps=2',
      'trainer.save_freq=1',
      'trainer.val_before_train=false',
    ];
    const engines = new FakeEngines();
    let saves = 0;
    engines.onCall = (_, name) => {
      if (name === 'actor.saveCheckpoint' && ++saves === 2) {
        throw Object.assign(new Error('ENOSPC: no space left on device'), { code: 'ENOSPC' });
      }
    };
    const run = trainer({ overrides, engines });
    await expect(run.trainer.fit()).rejects.toMatchObject({ code: 'NO_SPACE' });
    expect(read(run.directory, 'latest_checkpointed_iteration.txt')).toBe('1');
    expect(readdirSync(run.directory).filter((name) => name.includes('global_step'))).toEqual([
      'global_step_1',
    ]);
  });

  test('a reward that is NaN stops the run and names the sample', async () => {
    const run = trainer({ options: { reward: () => Number.NaN } });
    await expect(run.trainer.fit()).rejects.toMatchObject({ code: 'REWARD_FAILED' });
  });

  test.each(['final_model', 'final_adapter'])(
    'a %s that the trained one must not replace is found before any engine starts',
    async (name) => {
      const directory = runDirectory();
      mkdirSync(join(directory, name));
      writeFileSync(join(directory, name, 'README.md'), 'mine');
      const overrides = ['actor_rollout_ref.model.lora_rank=2'];
      const { trainer: refused, engines } = trainer({ directory, overrides });
      await expect(refused.fit()).rejects.toMatchObject({
        code: 'IO',
        message: expect.stringContaining(`${join(directory, name)}: it holds 'README.md'`),
      });
      expect(engines.calls).toEqual([]);
    },
  );

  test('an unwritable run directory is found before any engine starts', async () => {
    const file = join(runDirectory(), 'file');
    writeFileSync(file, '');
    const run = trainer({ directory: join(file, 'run') });
    await expect(run.trainer.fit()).rejects.toMatchObject({ code: 'IO' });
    expect(run.engines.calls).toEqual([]);
  });
});
