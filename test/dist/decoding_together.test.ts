import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { Actor } from '../../ts/actor/actor';
import type { EngineOptions } from '../../ts/engine/engine_options';
import type { NativeRolloutConfig } from '../../ts/rollout/native/native_options';
import { Workspace } from '../helpers/e2e_workspace';
import { waitForExit } from '../helpers/fake_group';
import { observedGroup } from '../helpers/observed_group';
import { type ObservedRun, observeRun } from '../helpers/observed_run';
import { raggedBatch, SHARDED_MODEL, smallEngine } from '../helpers/sharded';

// Workers that train with whole matrices and decode with parts of them: the breadth is test/native/decoding_copy_test.cc's.

const batch = raggedBatch(8, 6);
const prompts = Array.from({ length: batch.size }, (_, i) => batch.prompt(i));

/** Generations around an update. */
async function generations(o: Partial<EngineOptions>, rollout: NativeRolloutConfig) {
  const actor = await Actor.create({
    ...smallEngine,
    optim: { lr: 1e-2 },
    model: SHARDED_MODEL,
    ...o,
    rollout,
  });
  try {
    const generate = () => actor.generate(prompts, { n: 3, maxNewTokens: 12, seed: 5, stopTokenIds: [] });
    const before = await generate();
    await actor.updatePolicy(batch, { miniBatchSize: 4 });
    const after = await generate();
    return [before, after].map((made) => ({
      tokens: made.get('tokens'),
      logProbs: made.get('rolloutLogProbs') as Float32Array,
    }));
  } finally {
    await actor.close();
  }
}

const furthest = (a: Float32Array, b: Float32Array): number =>
  a.reduce((most, x, i) => Math.max(most, Math.abs(x - (b[i] as number))), 0);

test.each<[string, Partial<EngineOptions>, NativeRolloutConfig]>([
  ['two pairs of four workers', { worldSize: 4 }, {}],
  ['state on the host', { worldSize: 2, offload: { params: true, grads: true, optimizer: true } }, {}],
  ['sequences that neighbours share in training', { worldSize: 2, parallel: { ulysses: 2 } }, {}],
  ['a cache that stays', { worldSize: 2 }, { freeCacheEngine: false }],
])('generate what each alone does, before and after an update: %s', async (_, options, rollout) => {
  const alone = await generations(options, rollout);
  const together = await generations(options, { ...rollout, tensorParallel: 2 });
  expect(alone[0]?.tokens).not.toEqual(alone[1]?.tokens);
  for (const [i, made] of together.entries()) {
    expect(made.tokens).toEqual(alone[i]?.tokens);
    expect(furthest(made.logProbs, alone[i]?.logProbs as Float32Array)).toBeLessThan(2e-5);
  }
});

/** From now on the process may map so many bytes more. */
function limitMemory(pid: number, bytes: number): void {
  const mapped = /^VmSize:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
  execFileSync('prlimit', ['--pid', String(pid), `--as=${1024 * Number(mapped) + bytes}`]);
}

test('a rank that has no memory for a step ends the group: the one beside it would wait', async () => {
  const { group, processes } = await observedGroup({ worldSize: 4, device: 'cpu' });
  try {
    const cache = { kvCacheBytes: 2 ** 30, maxNumSeqs: 100_000 };
    const rollout = { tensorParallel: 2, ...cache };
    const actor = await Actor.create({ ...smallEngine, model: SHARDED_MODEL, group, rollout });
    const generate = () => actor.generate(prompts, { maxNewTokens: 40, seed: 5, stopTokenIds: [] });
    await generate();
    // Keys and values have been given back when a rank answers to this; its next step takes them again.
    await actor.rollout.pause('keep');
    await group.callRank(3, actor.name, 'stateBytes', []);
    limitMemory(processes[3]?.pid as number, 2 ** 28);
    await actor.rollout.resume();
    group.setPhase('gen');
    const error = await generate().catch((reason: unknown) => reason);
    expect(error).toMatchObject({
      message: expect.stringMatching(
        /^worker rank 3 failed in phase gen \(rolloutTurn of 'actor'\): .*memory/,
      ),
    });
    await expect(generate()).rejects.toBe(error);
    for (const { pid } of processes) await waitForExit(pid as number, 3000);
  } finally {
    await group.close();
  }
});

test('what cannot be is refused with the numbers, and the workers go on', async () => {
  const refused = (o: Partial<EngineOptions>, tensorParallel: number): Promise<unknown> =>
    Actor.create({ ...smallEngine, model: SHARDED_MODEL, ...o, rollout: { tensorParallel } }).then((actor) =>
      actor.close(),
    );
  await expect(refused({ worldSize: 2 }, 3)).rejects.toThrow(
    /tensorParallel: expected a divisor of the 2 workers, got 3/,
  );
  await expect(refused({ worldSize: 2, parallel: { tp: 2 } }, 2)).rejects.toThrow(
    /tensorParallel: expected 1 where training cuts the model/,
  );
  await expect(refused({ worldSize: 2 }, 0)).rejects.toThrow(/tensorParallel: .*got 0/);
});

describe('whole runs', () => {
  let workspace: Workspace;
  beforeAll(async () => {
    workspace = await Workspace.create();
  });
  afterAll(() => workspace.remove());

  const key = 'actor_rollout_ref.rollout.tensor_model_parallel_size';
  const run = (name: string, ...overrides: string[]): Promise<ObservedRun> =>
    observeRun(
      workspace.file('train.yaml'),
      [
        'trainer.n_gpus_per_node=2',
        'trainer.total_training_steps=2',
        'trainer.test_freq=-1',
        'trainer.logger=[]',
        ...overrides,
        `trainer.default_local_dir=${workspace.file(name)}`,
      ],
      ({ response }) => [...response].filter((c) => c === '7').length / 8,
    );

  test.each([
    ['the whole model', []],
    ['adapters', ['actor_rollout_ref.model.lora_rank=4', 'actor_rollout_ref.model.lora_alpha=8']],
  ])('%s: a run learns from the responses that it would have made alone', async (_, keys) => {
    const alone = await run(`alone-${keys.length}`, ...keys);
    const together = await run(`together-${keys.length}`, ...keys, `${key}=2`);
    for (const [step, { batch: learnt }] of alone.updates.entries())
      expect(together.updates[step]?.batch.get('tokens')).toEqual(learnt.get('tokens'));
    const worst = together.metrics.map((line) => line['training/rollout_probs_diff_max'] as number);
    expect(worst.filter((difference) => difference !== undefined)).toHaveLength(2);
    for (const difference of worst) if (difference !== undefined) expect(difference).toBeLessThan(1e-4);
  });

  test('a number that the heads do not divide is refused before any worker starts', async () => {
    await expect(run('refused', 'trainer.n_gpus_per_node=3', `${key}=3`)).rejects.toThrow(
      /rollout\.tensor_model_parallel_size: expected a divisor of the \d+ attention heads/,
    );
  });
});
