import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { loadConfig } from '../../ts/config/config';
import type { Launcher, WorkerSpec } from '../../ts/controller/launcher';
import { createLocalLauncher } from '../../ts/controller/local_launcher';
import { ResourcePools } from '../../ts/controller/resource_pools';
import { WorkerDiedError } from '../../ts/errors';
import { RewardModel, type RewardModelEngine } from '../../ts/reward_model/reward_model';
import { type CreateEngines, createEngines } from '../../ts/trainer/engines';
import { Trainer } from '../../ts/trainer/trainer';
import { allGone, isAlive, listTree } from '../helpers/e2e_process';
import { rewardTensors, VOCABULARY, Workspace, writeModel } from '../helpers/e2e_workspace';
import { raggedBatch } from '../helpers/sharded';

// The trainer with the reward model in workers of its own: the same numbers, one error, and nothing left of any pool.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
  await writeModel(workspace.file('reward_model'), { tensors: rewardTensors() });
});
afterAll(() => workspace.remove());

const rm = 'reward.reward_model';

/** `reward`: workers of the reward model's pool; null: it shares those of the policy. */
function configured(name: string, workers: number, reward: number | null, ...overrides: string[]) {
  const pool =
    reward === null
      ? []
      : [`${rm}.enable_resource_pool=true`, `${rm}.nnodes=1`, `${rm}.n_gpus_per_node=${reward}`];
  return loadConfig(workspace.file('train.yaml'), [
    'reward.custom_reward_function.path=null',
    `${rm}.enable=true`,
    `${rm}.model_path=${workspace.file('reward_model')}`,
    `${rm}.forward_max_token_len_per_gpu=256`,
    `trainer.default_local_dir=${workspace.file(name)}`,
    `trainer.n_gpus_per_node=${workers}`,
    'trainer.total_training_steps=2',
    'trainer.save_freq=-1',
    ...pool,
    ...overrides,
  ]);
}

interface Started {
  pid: number;
  spec: WorkerSpec;
}

/** Workers that start; those of `broken` end at once. */
function observedLauncher(broken?: string): { launcher: Launcher; started: Started[] } {
  const started: Started[] = [];
  const [whole, dead] = [
    createLocalLauncher(),
    createLocalLauncher({}, { args: ['-e', 'process.exit(3)'], env: {} }),
  ];
  const launcher: Launcher = {
    start(spec) {
      const worker = (spec.pool === broken ? dead : whole).start(spec);
      started.push({ pid: worker.pid as number, spec });
      return worker;
    },
  };
  return { launcher, started };
}

const pidsOf = (started: readonly Started[]): number[] => started.map(({ pid }) => pid);

const files = (name: string): [string, string][] =>
  listTree(workspace.file(name))
    .filter((path) => /metrics\.jsonl$|^samples\/.*jsonl$|^final_model\/.*safetensors$/.test(path))
    .map((path) => [path, readFileSync(join(workspace.file(name), path)).toString('base64')]);

const failure = async (run: Promise<unknown>): Promise<Error> => {
  const error = await run.then(
    () => null,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(Error);
  return error as Error;
};

test.each([
  ['grpo', []],
  ['ppo', ['algorithm.adv_estimator=gae', 'critic.ppo_epochs=2']],
] as const)(
  '%s: rewards, losses and model are bitwise those of the reward model among the workers of the policy',
  async (name, overrides) => {
    const critic = [`critic.model.path=${workspace.file('model')}`];
    const run = async (directory: string, reward: number | null, ...more: string[]) => {
      const { launcher, started } = observedLauncher();
      const config = configured(directory, 2, reward, ...critic, ...overrides, ...more);
      await new Trainer(config, { launcher }).fit();
      expect(await allGone(pidsOf(started), 2000)).toBe(true);
      return started.map(({ spec: { pool, rank, localRank } }) => [pool, rank, localRank]);
    };
    expect(await run(`${name}-shared`, null)).toEqual([
      [null, 0, 0],
      [null, 1, 1],
    ]);
    const expected = files(`${name}-shared`);
    expect(expected.map(([path]) => path)).toEqual(
      expect.arrayContaining(['metrics.jsonl', 'samples/2.jsonl', 'final_model/model.safetensors']),
    );
    expect(await run(`${name}-own`, 1)).toEqual([
      ['policy', 0, 0],
      ['policy', 1, 1],
      ['reward', 0, 2],
    ]);
    expect(files(`${name}-own`)).toEqual(expected);
    if (name !== 'grpo') return;
    // More ranks than the policy has, which share micro-batches among themselves.
    await run(
      'grpo-wide',
      4,
      `${rm}.ulysses_sequence_parallel_size=2`,
      `${rm}.model.fsdp_config.fsdp_size=2`,
    );
    expect(files('grpo-wide')).toEqual(expected);
  },
  120_000,
);

/** Sends `signal` to those that still exist. */
function signalAll(pids: readonly number[], signal: NodeJS.Signals): void {
  for (const pid of pids.filter(isAlive)) process.kill(pid, signal);
}

test.each([
  ['reward', 1],
  ['reward', 0],
  ['policy', 0],
] as const)(
  'SIGKILL of a worker of pool %s, rank %d, during scoring: one error, and no process of any pool stays',
  async (pool, rank) => {
    const { launcher, started } = observedLauncher();
    const of = (name: string): number[] => pidsOf(started.filter(({ spec }) => spec.pool === name));
    const engines: CreateEngines = async (config, needs) => {
      const created = await createEngines(config, needs);
      const score: RewardModelEngine['score'] = (batch) => {
        // Stopped first, so that the death falls into the scoring.
        signalAll(of('reward'), 'SIGSTOP');
        const scores = (created.rewardModel as RewardModelEngine).score(batch);
        process.kill(of(pool)[rank] as number, 'SIGKILL');
        if (pool === 'reward') signalAll(of('reward'), 'SIGCONT');
        else void created.failed?.then(() => signalAll(of('reward'), 'SIGCONT'));
        return scores;
      };
      return { ...created, rewardModel: { score } };
    };
    const config = configured(`killed-${pool}-${rank}`, 1, 2, 'trainer.val_before_train=false');
    const error = await failure(new Trainer(config, { launcher, engines }).fit());
    expect(error).toBeInstanceOf(WorkerDiedError);
    expect(error).toMatchObject({ pool, rank, phase: 'reward of step 1', signal: 'SIGKILL' });
    const request = pool === 'reward' ? " (computeValues of 'reward_model')" : '';
    // What ends a rollout may still be on its way back.
    expect(error.message.replace(/ \((rolloutTurn|parkRollout) of 'actor'\)/, '')).toContain(
      `worker rank ${rank} of pool ${pool} died in phase reward of step 1${request}: killed by SIGKILL`,
    );
    expect(started).toHaveLength(3);
    expect(await allGone(pidsOf(started), 2000)).toBe(true);
  },
  60_000,
);

test('the second pool cannot start: one error that names it, and the first pool ends', async () => {
  const { launcher, started } = observedLauncher('reward');
  const config = configured('no-reward-pool', 2, 1);
  const error = await failure(new Trainer(config, { launcher }).fit());
  expect(error).toMatchObject({
    code: 'WORKER_DIED',
    pool: 'reward',
    rank: 0,
    phase: 'startup',
    exitCode: 3,
  });
  expect(error.message).toMatch(/^worker rank 0 of pool reward died in phase startup: it exited with code 3/);
  expect(started.map(({ spec }) => spec.pool)).toEqual(['policy', 'policy', 'reward']);
  expect(await allGone(pidsOf(started), 2000)).toBe(true);
});

test('a reward model that its pool cannot load ends both pools', async () => {
  const { launcher, started } = observedLauncher();
  const config = configured('no-reward-model', 1, 1, `${rm}.model_path=${workspace.file('model')}`);
  const error = await failure(new Trainer(config, { launcher }).fit());
  expect(error).toMatchObject({ code: 'INVALID_MODEL' });
  expect(started).toHaveLength(2);
  expect(await allGone(pidsOf(started), 2000)).toBe(true);
});

test('a script: engines in pools that it launches', async () => {
  const pools = await ResourcePools.launch({ pools: { policy: 1, reward: 2 }, device: 'cpu' });
  try {
    const model = workspace.file('reward_model');
    const [shared, own] = [
      await RewardModel.create({ model, group: pools.group('policy') }),
      await RewardModel.create({ model, group: pools.group('reward') }),
    ];
    const batch = raggedBatch(7, 2, VOCABULARY);
    expect(await own.score(batch)).toEqual(await shared.score(batch));
    await own.close();
  } finally {
    await pools.close();
  }
});
