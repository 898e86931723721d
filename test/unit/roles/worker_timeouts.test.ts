import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { WorkerGroupOptions } from '../../../ts/controller/group_options';
import { WorkerGroup } from '../../../ts/controller/worker_group';
import { createEngines } from '../../../ts/trainer/engines';
import { SftTrainer } from '../../../ts/trainer/sft_trainer';
import { ppo, sft } from './role_configs';

describe('time-outs of workers', () => {
  const launched: WorkerGroupOptions[] = [];
  beforeEach(() => {
    launched.length = 0;
    jest.spyOn(WorkerGroup, 'launch').mockImplementation(async (options) => {
      launched.push(options);
      throw new Error('not started here');
    });
  });
  afterEach(() => void jest.restoreAllMocks());
  const keys = ['startup=90', 'silence=20.5', 'close=7'].map((key) => `trainer.worker_timeouts.${key}`);
  const expected = {
    startupTimeoutMs: 90_000,
    deadTimeoutMs: 20_500,
    closeTimeoutMs: 7_000,
    collectiveTimeoutMs: 33_000,
  };

  test('of troupe train', async () => {
    const config = ppo(...keys, 'actor_rollout_ref.nccl_timeout=33', 'trainer.num_threads=3');
    const needs = {
      reference: false,
      critic: false,
      rewardModel: false,
      totalSteps: 1,
      device: 'cpu',
    } as const;
    await expect(createEngines(config, needs)).rejects.toThrow('not started here');
    expect(launched).toMatchObject([{ worldSize: 4, device: 'cpu', numThreads: 3, ...expected }]);
  });

  test('of troupe sft', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'roles-'));
    const config = sft(
      ...keys,
      'trainer.nccl_timeout=33',
      'trainer.n_gpus_per_node=2',
      'trainer.num_threads=3',
      `trainer.default_local_dir=${directory}`,
    );
    const train = {
      batchesPerEpoch: 1,
      next: async () => ({ examples: [], epoch: 0 }),
      state: () => 0,
      restore: () => {},
    };
    const trainer = new SftTrainer(config, { data: async () => ({ train, validation: [] }) });
    await expect(trainer.fit()).rejects.toThrow('not started here');
    expect(launched).toMatchObject([{ worldSize: 2, device: 'cpu', numThreads: 3, ...expected }]);
  });

  test('without keys: those of before', async () => {
    const needs = {
      reference: false,
      critic: false,
      rewardModel: false,
      totalSteps: 1,
      device: 'cpu',
    } as const;
    await expect(createEngines(ppo(), needs)).rejects.toThrow('not started here');
    const seconds = { startupTimeoutMs: 60_000, deadTimeoutMs: 10_000, closeTimeoutMs: 5_000 };
    expect(launched).toMatchObject([{ ...seconds, collectiveTimeoutMs: 600_000 }]);
  });
});
