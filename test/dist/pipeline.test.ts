import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import type { Batch } from '../../ts/batch/batch';
import { Critic } from '../../ts/critic/critic';
import type { UpdateMetrics } from '../../ts/engine/engine_metrics';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { WorkerDiedError } from '../../ts/errors';
import { CONFORMANCE } from '../helpers/conformance';
import { waitForExit } from '../helpers/fake_group';
import { expectCloseMetrics } from '../helpers/layout_runs';
import { observedGroup } from '../helpers/observed_group';
import { expectSameMetrics, raggedBatch, relative } from '../helpers/sharded';

// Workers that are stages of a pipeline have the numbers of one. The core alone, with every schedule, family and sharding:
// test/native/pipeline_test.cc; what it takes: test/native/pipeline_runs_test.cc.
const MODELS = path.join(CONFORMANCE, 'models');
const engine: Partial<EngineOptions> = { maxTokensPerMicroBatch: 64, numThreads: 1, optim: { lr: 1e-4 } };
const model = path.join(MODELS, 'qwen3_headdim', 'actor');

async function withActor<T>(o: Partial<EngineOptions>, body: (actor: Actor) => Promise<T>): Promise<T> {
  const actor = await Actor.create({ ...engine, model, ...o });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

async function train(actor: Actor, batch: Batch, updates: number) {
  const before = await actor.computeLogProb(batch, { entropy: true, sumPiSquared: true });
  const first = batch.drop('oldLogProbs').with({ oldLogProbs: before.logProbs });
  const metrics: UpdateMetrics[] = [];
  for (let i = 0; i < updates; i++) metrics.push(await actor.updatePolicy(first, {}));
  return { before, metrics, after: await actor.computeLogProb(batch) };
}

test.each<[NonNullable<EngineOptions['parallel']>, number]>([
  [{ pp: 2 }, 2],
  [{ pp: 2, sharding: 'full_shard' }, 4],
  [{ pp: 2, ulysses: 2 }, 4],
])('an actor over %j, %d workers, has the numbers of one', async (parallel, worldSize) => {
  const batch = raggedBatch(9, 3);
  const expected = await withActor({}, (actor) => train(actor, batch, 10));
  const actual = await withActor({ worldSize, parallel }, (actor) => train(actor, batch, 10));
  expect(actual.before).toEqual(expected.before); // bitwise
  expect(actual.metrics[0]?.['actor/ppo_kl']).toBe(0);
  expectSameMetrics(actual.metrics, expected.metrics);
  expect(relative(actual.after.logProbs, expected.after.logProbs)).toBeLessThan(1e-6);
});

test('eight workers, tp 2 x pp 2 x dp 2, have the numbers of one', async () => {
  const batch = raggedBatch(9, 3);
  const expected = await withActor({}, (actor) => train(actor, batch, 10));
  const parallel = { pp: 2, tp: 2, sequenceParallel: true };
  const actual = await withActor({ worldSize: 8, parallel }, (actor) => train(actor, batch, 10));
  for (const column of ['logProbs', 'entropy'] as const)
    expect(
      relative(actual.before[column] as Float32Array, expected.before[column] as Float32Array),
    ).toBeLessThan(1e-6);
  expect(actual.metrics[0]?.['actor/ppo_kl']).toBe(0);
  expectCloseMetrics(actual.metrics, expected.metrics);
  expect(relative(actual.after.logProbs, expected.after.logProbs)).toBeLessThan(1e-5);
});

test('a critic, and fewer sequences than stages', async () => {
  const batch = raggedBatch(4, 3).slice(0, 1);
  const run = async (o: Partial<EngineOptions>) => {
    const critic = await Critic.create({
      ...engine,
      model: path.join(MODELS, 'qwen3_headdim', 'critic'),
      ...o,
    });
    try {
      const before = await critic.computeValues(batch);
      const metrics: UpdateMetrics[] = [];
      for (let i = 0; i < 3; i++) metrics.push(await critic.updateCritic(batch, {}));
      return { before, metrics, after: await critic.computeValues(batch) };
    } finally {
      await critic.close();
    }
  };
  const one = await run({});
  const two = await run({ worldSize: 2, parallel: { pp: 2 }, gradientCheckpointing: true });
  expect(two.before).toEqual(one.before);
  expectSameMetrics(two.metrics, one.metrics);
  expect(relative(two.after.values, one.after.values)).toBeLessThan(1e-6);
});

test('a checkpoint of a pipeline continues in one process, and the other way round', async () => {
  const dir = mkdtempSync(path.join(tmpdir(), 'troupe-pipeline-'));
  const batch = raggedBatch(6, 3);
  const tied = path.join(MODELS, 'qwen2_tied', 'actor');
  const pipeline = { worldSize: 2, parallel: { pp: 2 } };
  const small = (o: Partial<EngineOptions>) => ({ ...o, model: tied });
  const update = (actor: Actor) => actor.updatePolicy(batch, {});
  try {
    const expected = await withActor(small({}), async (actor) => {
      await update(actor);
      return [await update(actor)];
    });
    for (const [i, [from, to]] of [
      [pipeline, {}],
      [{}, pipeline],
    ].entries()) {
      const saved = path.join(dir, `step_${i}`);
      await withActor(small(from as Partial<EngineOptions>), async (actor) => {
        await update(actor);
        await actor.saveCheckpoint(saved);
      });
      const continued = await withActor(small(to as Partial<EngineOptions>), async (actor) => {
        await actor.loadCheckpoint(saved);
        return [await update(actor)];
      });
      expectSameMetrics(continued, expected);
    }
  } finally {
    rmSync(dir, { recursive: true });
  }
});

async function forever(body: (round: number) => Promise<unknown>): Promise<void> {
  for (let round = 0; ; round++) await body(round);
}

// At which message of a step, in warm-up, steady state and cool-down: test/native/pipeline_faults_test.cc.
test.each([
  ['gen', 1],
  ['old_log_prob', 1],
  ['values', 0],
  ['update_critic', 1],
  ['update_actor', 1],
  ['update_actor', 0],
  ['save_checkpoint', 1],
  ['save_checkpoint', 0],
] as const)(
  '%s: SIGKILL of rank %d leaves no process and no half-written checkpoint',
  async (phase, victim) => {
    const dir = mkdtempSync(path.join(tmpdir(), 'troupe-pipeline-'));
    const { group, processes } = await observedGroup({ worldSize: 2, device: 'cpu', deadTimeoutMs: 2000 });
    try {
      const options = { ...engine, group, parallel: { pp: 2 } };
      const actor = await Actor.create({ ...options, model });
      const critic = await Critic.create({ ...options, model: path.join(model, '..', 'critic') });
      const batch = raggedBatch(9, 3);
      const prompts = Array.from({ length: batch.size }, (_, i) => batch.prompt(i));
      const sampling = { maxNewTokens: 40, n: 8, seed: 1, stopTokenIds: [] };
      const work = {
        gen: () => forever(() => actor.generate(prompts, sampling)),
        old_log_prob: () => forever(() => actor.computeLogProb(batch)),
        values: () => forever(() => critic.computeValues(batch)),
        update_critic: () => critic.updateCritic(batch, { ppoEpochs: 100_000 }),
        update_actor: () => actor.updatePolicy(batch, { ppoEpochs: 100_000 }),
        save_checkpoint: () =>
          forever(async (round) => {
            await actor.saveCheckpoint(path.join(dir, `actor_${round}`));
            await critic.saveCheckpoint(path.join(dir, `critic_${round}`));
          }),
      };
      group.setPhase(phase);
      const call: Promise<unknown> = work[phase]();
      setTimeout(() => process.kill(processes[victim]?.pid as number, 'SIGKILL'), 300);
      const error = await call.then(
        () => null,
        (reason: unknown) => reason as Error,
      );
      expect(error).toBeInstanceOf(WorkerDiedError);
      expect(error).toMatchObject({ rank: victim, phase, signal: 'SIGKILL' });
      for (const worker of processes) await waitForExit(worker.pid as number, 3000);
      for (const entry of readdirSync(dir)) expect(existsSync(path.join(dir, entry, 'optimizer'))).toBe(true);
    } finally {
      await group.close();
      rmSync(dir, { recursive: true });
    }
  },
);

test.each<[NonNullable<EngineOptions['parallel']>, number]>([
  [{ pp: 2, tp: 2 }, 4],
  [{ pp: 2, sharding: 'full_shard' }, 4],
])('%j, %d workers: generates as one worker, before and after an update', async (parallel, worldSize) => {
  const batch = raggedBatch(6, 3);
  const prompts = Array.from({ length: batch.size }, (_, i) => batch.prompt(i));
  const run = async (actor: Actor) => {
    const sample = () => actor.generate(prompts, { maxNewTokens: 6, n: 2, seed: 3 });
    const before = await sample();
    await actor.updatePolicy(batch, {});
    return [before, await sample()].map((samples) => samples.get('tokens'));
  };
  const expected = await withActor({}, run);
  expect(await withActor({ worldSize, parallel }, run)).toEqual(expected);
});

test('pipelines that make no sense are refused before a worker starts, with the numbers', async () => {
  const create = (worldSize: number, parallel: NonNullable<EngineOptions['parallel']>) =>
    withActor({ worldSize, parallel }, async () => undefined);
  await expect(create(4, { pp: 3 })).rejects.toThrow(/parallel\.pp 3: expected a divisor of worldSize = 4/);
  await expect(create(2, { vpp: 2 })).rejects.toThrow(
    /parallel\.vpp 2: expected parallel\.pp >= 2 beside it, got 1/,
  );
  await expect(create(8, { pp: 8 })).rejects.toThrow(
    /parallel\.pp 8 x parallel\.vpp 1: \d layers do not make 8 parts: they would have [\d, ]+ layers \(the model in .*qwen3_headdim/,
  );
  await expect(create(4, { pp: 2, ulysses: 4 })).rejects.toThrow(
    /parallel\.ulysses 4: expected a divisor of worldSize \/ parallel\.pp = 4 \/ 2 = 2/,
  );
});
