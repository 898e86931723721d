import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import type { Batch } from '../../ts/batch/batch';
import { loadConfig } from '../../ts/config/config';
import { createLocalLauncher } from '../../ts/controller/local_launcher';
import { ResourcePools } from '../../ts/controller/resource_pools';
import { WorkerDiedError } from '../../ts/errors';
import { type CreateEngines, createEngines, type Engines } from '../../ts/trainer/engines';
import { PoolRollout } from '../../ts/trainer/pool_rollout';
import { Trainer, type TrainerOptions } from '../../ts/trainer/trainer';
import { CONFORMANCE } from '../helpers/conformance';
import { allGone, listTree } from '../helpers/e2e_process';
import { BATCH, Workspace } from '../helpers/e2e_workspace';
import { OWN_PRODUCTS } from '../helpers/processor';
import { raggedBatch } from '../helpers/sharded';

/** Between log-probs of a rollout and of computeLogProb: LibTorch's products differ by 1.4e-6 here, other weights by 0.08. */
const ROUNDING = OWN_PRODUCTS ? 0 : 1e-5;

// Our own engine in workers that do nothing but generate: the numbers of one among the training workers, and the weights of now.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

const ROLLOUT = 'actor_rollout_ref.rollout';
const pool = (workers: number): string[] => [`${ROLLOUT}.nnodes=1`, `${ROLLOUT}.n_gpus_per_node=${workers}`];
const lora = ['lora_rank=4', 'lora_alpha=8'].map((key) => `actor_rollout_ref.model.${key}`);

type Line = Record<string, number>;

const configured = (directory: string, ...overrides: string[]) =>
  loadConfig(workspace.file('train.yaml'), [
    `trainer.default_local_dir=${workspace.file(directory)}`,
    ...overrides,
  ]);

const lines = (directory: string): Line[] =>
  readFileSync(workspace.file(`${directory}/metrics.jsonl`), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));

const files = (directory: string): [string, string][] =>
  listTree(workspace.file(directory))
    .filter((path) => /metrics\.jsonl$|^samples\/.*jsonl$|^final_(model|adapter)\/.*safetensors$/.test(path))
    .map((path) => [path, readFileSync(join(workspace.file(directory), path)).toString('base64')]);

test.each([
  ['whole', 1, 2, []],
  ['wide', 2, 1, []],
  ['adapters', 1, 2, lora],
  ['critic', 2, 1, ['algorithm.adv_estimator=gae', 'trainer.critic_warmup=2']],
] as const)(
  '%s: steps that wait for their responses, of %d training workers and a pool of %d, have the numbers of a run without a pool',
  async (name, workers, generating, more) => {
    const model = [`critic.model.path=${workspace.file('model')}`, `trainer.n_gpus_per_node=${workers}`];
    await new Trainer(configured(`${name}-shared`, ...model, ...more)).fit();
    await new Trainer(configured(`${name}-own`, ...model, ...more, ...pool(generating))).fit();
    const expected = files(`${name}-shared`);
    expect(expected.map(([path]) => path)).toEqual(
      expect.arrayContaining(['metrics.jsonl', 'samples/4.jsonl', 'final_model/model.safetensors']),
    );
    expect(files(`${name}-own`)).toEqual(expected);
    const differences = lines(`${name}-own`).flatMap((line) => line['training/rollout_probs_diff_max'] ?? []);
    expect(differences).toHaveLength(4);
    expect(Math.max(...differences)).toBeLessThanOrEqual(ROUNDING);
  },
  240_000,
);

test('a run that is resumed goes on with the weights of its checkpoint', async () => {
  await new Trainer(configured('resumed', ...pool(1), 'trainer.total_training_steps=2')).fit();
  await new Trainer(configured('resumed', ...pool(2))).fit();
  expect(files('resumed').filter(([path]) => !path.startsWith('final_'))).toEqual(
    files('whole-shared').filter(([path]) => !path.startsWith('final_')),
  );
}, 120_000);

test('separate_async with nothing ahead has the numbers of steps that wait for their responses', async () => {
  const alike = [
    'trainer.v1.trainer_mode=separate_async',
    'trainer.v1.separate_async.num_warmup_batches=0',
    'algorithm.rollout_correction.preset=disabled',
  ];
  await new Trainer(configured('nothing-ahead', ...pool(2), ...alike)).fit();
  const found = lines('nothing-ahead').map((line) =>
    Object.fromEntries(Object.entries(line).filter(([key]) => !key.startsWith('training/off_policy/'))),
  );
  expect(found).toEqual(lines('whole-shared'));
}, 120_000);

/** What the actor was asked for log-probs of, and what it said: by step the batch with both. */
function observed(seen: Batch[]): CreateEngines {
  return async (config, needs) => {
    const engines = await createEngines(config, needs);
    const actor: Engines['actor'] = Object.create(engines.actor);
    actor.computeLogProb = async (batch, options) => {
      const result = await engines.actor.computeLogProb(batch, options);
      const columns = ['version', 'rolloutLogProbs'] as const;
      seen.push(batch.select(columns).with({ oldLogProbs: Float32Array.from(result.logProbs) }));
      return result;
    };
    return { ...engines, actor };
  };
}

test.each([1, 2])(
  'separate_async with a pool of %d: tokens have the version of the weights that made them',
  async (workers) => {
    const directory = `async-${workers}`;
    const overrides = [
      ...pool(workers),
      'trainer.v1.trainer_mode=separate_async',
      'trainer.v1.sampler.max_off_policy_threshold=3',
      // Every step makes other weights.
      'actor_rollout_ref.actor.optim.lr_warmup_steps=0',
      'algorithm.rollout_correction.preset=disabled',
      'trainer.val_before_train=false',
    ];
    const [early, late]: [Batch[], Batch[]] = [[], []];
    const train = async (steps: number, seen: Batch[]) =>
      await new Trainer(configured(directory, ...overrides, `trainer.total_training_steps=${steps}`), {
        engines: observed(seen),
      }).fit();
    await train(3, early);
    await train(6, late);
    expect([early.length, late.length]).toEqual([3, 3]);
    let newest = 0;
    for (const [i, batch] of [...early, ...late].entries()) {
      expect(batch.size).toBe(BATCH.prompts * BATCH.n);
      const [versions, sampled, now] = (['version', 'rolloutLogProbs', 'oldLogProbs'] as const).map((name) =>
        batch.get(name),
      ) as [Int32Array, Float32Array, Float32Array];
      expect(Math.max(...versions)).toBeLessThanOrEqual(i);
      expect(Math.min(...versions)).toBeGreaterThanOrEqual(Math.max(0, i - 2));
      for (let j = 0; j < batch.size; j++) {
        const [start, end] = [batch.responseOffsets[j] as number, batch.responseOffsets[j + 1] as number];
        const same = sampled
          .subarray(start, end)
          .every((value, t) => Math.abs(value - (now[start + t] as number)) <= ROUNDING);
        // All of it by the weights that learn next: these find the same log-probs. By others: they find others.
        if (versions.subarray(start, end).every((version) => version === i)) {
          newest++;
          expect(same).toBe(true);
        } else expect(same).toBe(false);
      }
    }
    expect(newest).toBeGreaterThan(0);
    const ages = lines(directory).flatMap(
      (line) => line['training/off_policy/trajectory_staleness_worst/max'] ?? [],
    );
    expect(ages).toHaveLength(6);
    expect(Math.max(...ages)).toBeGreaterThan(0);
  },
  240_000,
);

test('a worker of the pool that is killed ends the run with one error, which names the pool', async () => {
  const pids = new Map<string, number>();
  const local = createLocalLauncher();
  const launcher: TrainerOptions['launcher'] = {
    start(spec) {
      const worker = local.start(spec);
      pids.set(`${spec.pool} ${spec.rank}`, worker.pid as number);
      return worker;
    },
  };
  const engines: CreateEngines = async (config, needs) => {
    const created = await createEngines(config, needs);
    const actor: Engines['actor'] = Object.create(created.actor);
    actor.updatePolicy = (batch, options) => {
      process.kill(pids.get('rollout 1') as number, 'SIGKILL');
      return created.actor.updatePolicy(batch, options);
    };
    return { ...created, actor };
  };
  const config = configured('killed', ...pool(2), 'trainer.val_before_train=false');
  const run = new Trainer(config, { launcher, engines }).fit();
  const error = await run.then(
    () => null,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(WorkerDiedError);
  expect(error).toMatchObject({ pool: 'rollout', rank: 1, signal: 'SIGKILL' });
  expect((error as Error).message).toMatch(/^worker rank 1 of pool rollout died in phase \w+ of step 1/);
  expect([...pids.keys()]).toEqual(['policy 0', 'rollout 0', 'rollout 1']);
  expect(await allGone([...pids.values()], 2000)).toBe(true);
}, 60_000);

interface Case {
  model: string;
  workers: number;
  generating: number;
  options?: Partial<ActorOptions>;
  overrides?: string[];
}

const CASES: Record<string, Case> = {
  'float32, to a larger pool': { model: 'qwen3_headdim', workers: 1, generating: 2 },
  'bfloat16, to a smaller pool': {
    model: 'qwen3_headdim',
    workers: 2,
    generating: 1,
    options: { dtype: 'bfloat16' },
    overrides: ['actor_rollout_ref.actor.fsdp_config.dtype=bfloat16'],
  },
  'adapters, to workers that decode together': {
    model: 'qwen3_headdim',
    workers: 1,
    generating: 2,
    options: { lora: { rank: 4, alpha: 8 } },
    overrides: [...lora, `${ROLLOUT}.tensor_model_parallel_size=2`],
  },
  'experts, from ranks that share the matrices': {
    model: 'qwen3_moe',
    workers: 2,
    generating: 2,
    options: { parallel: { tp: 2 } },
    overrides: ['actor_rollout_ref.actor.strategy=megatron'],
  },
};

async function bytesOf(actor: Actor): Promise<Map<string, string>> {
  const all = new Map<string, string>();
  const kind = actor.engine.lora === null ? {} : { lora: 'adapter' as const };
  for await (const { parts } of actor.exportWeights(kind))
    for (const { name, row, data } of parts) all.set(`${name} ${row}`, Buffer.from(data).toString('base64'));
  return all;
}

test.each(Object.entries(CASES))(
  '%s: after each update the pool has the weights that were trained, bit for bit, and requests in flight go on with them',
  async (_, { model, workers, generating, options, overrides }) => {
    const directory = join(CONFORMANCE, 'models', model, 'actor');
    const pools = await ResourcePools.launch({
      pools: { policy: workers, rollout: generating },
      device: 'cpu',
    });
    try {
      const actor = await Actor.create({
        model: directory,
        group: pools.group('policy'),
        maxTokensPerMicroBatch: 64,
        optim: { lr: 1e-2 },
        seed: 3,
        ...options,
      });
      const config = configured(
        'unused',
        `actor_rollout_ref.model.path=${directory}`,
        ...pool(generating),
        ...(overrides ?? []),
      );
      const own = await PoolRollout.create(config, actor, pools.group('rollout'), {
        tensorParallel: config.actor_rollout_ref.rollout.tensor_model_parallel_size ?? 1,
        freeCacheEngine: false,
      });
      await own.sync(0);
      const before = await bytesOf(actor);
      expect(await bytesOf(own.generating)).toEqual(before);

      // Updates begin when so many tokens are there.
      const updates = new Map([
        [4, 5],
        [9, 6],
      ]);
      let made = 0;
      const constraint = {
        next: async () => {
          const version = updates.get(made++);
          if (version === undefined) return null;
          await actor.updatePolicy(raggedBatch(8, version, 100));
          await own.sync(version);
          return null;
        },
      };
      const sampling = { maxNewTokens: 14, seed: 3n, stopTokenIds: [], constraint };
      const { versions, tokens, logProbs } = await own.engine.submit({ promptIds: [5, 9, 2], sampling })
        .result;
      expect(tokens).toHaveLength(14);
      expect(versions).toEqual([
        { version: 0, start: 0, end: 4 },
        { version: 5, start: 4, end: 9 },
        { version: 6, start: 9, end: 14 },
      ]);
      expect(logProbs.every((value) => value <= 0)).toBe(true);
      const after = await bytesOf(actor);
      expect(await bytesOf(own.generating)).toEqual(after);
      expect(after).not.toEqual(before);
      expect(own.engine.version).toBe(6);
    } finally {
      await pools.close();
    }
  },
  120_000,
);
