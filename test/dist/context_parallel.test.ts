import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { CONFORMANCE } from '../helpers/conformance';
import { raggedBatch, relative, SHARDED_CRITIC, SHARDED_MODEL, smallEngine } from '../helpers/sharded';

// Workers that share every sequence (context parallelism) have the numbers of one. The core alone, at more layouts:
// test/native/context_parallel_test.cc.
const batch = raggedBatch(12, 5);
const update = { miniBatchSize: batch.size / 2, loss: { entropyCoeff: 0.01 } };

const scratch = mkdtempSync(path.join(tmpdir(), 'troupe-cp-'));
let groups: Record<'one' | 'two' | 'four', WorkerGroup>;
beforeAll(async () => {
  const launch = (worldSize: number) => WorkerGroup.launch({ worldSize, device: 'cpu', numThreads: 1 });
  groups = { one: await launch(1), two: await launch(2), four: await launch(4) };
});
afterAll(async () => {
  for (const group of Object.values(groups)) await group.close();
  rmSync(scratch, { recursive: true, force: true });
});

type Layout = Partial<EngineOptions> & { group: WorkerGroup };

async function withActor<T>(o: Layout, body: (actor: Actor) => Promise<T>): Promise<T> {
  const actor = await Actor.create({ model: SHARDED_MODEL, ...smallEngine, ...o });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

test.each<['two' | 'four', NonNullable<EngineOptions['parallel']>]>([
  ['two', { cp: 2 }],
  ['four', { cp: 2, tp: 2, sequenceParallel: true }],
  ['four', { cp: 2, pp: 2 }],
  ['four', { cp: 2, sharding: 'shard_grad_op' }], // two groups with data of their own
])('an actor on %s workers, %j, scores, trains and generates as on one', async (workers, parallel) => {
  const prompts = Array.from({ length: 3 }, (_, i) => batch.prompt(i));
  const run = async (actor: Actor) => {
    const { logProbs } = await actor.computeLogProb(batch);
    const first = batch.drop('oldLogProbs').with({ oldLogProbs: logProbs });
    const { 'actor/ppo_kl': kl } = await actor.updatePolicy(first, { miniBatchSize: batch.size });
    const metrics = [];
    for (let i = 0; i < 3; i++) metrics.push(await actor.updatePolicy(batch, update));
    const samples = await actor.generate(prompts, { maxNewTokens: 5, n: 2, seed: 3 });
    return { logProbs, kl, metrics, tokens: samples.get('tokens'), after: await actor.computeLogProb(batch) };
  };
  const expected = await withActor({ group: groups.one }, run);
  const actual = await withActor({ group: groups[workers], parallel }, run);
  const apart = actual.logProbs.map((x, i) => Math.abs(x - (expected.logProbs[i] as number)));
  expect(Math.max(...apart)).toBeLessThan(parallel.tp === 2 ? 1e-5 : 1e-30); // without tp: the same bits
  expect(actual.kl).toBe(0);
  expect(actual.tokens).toEqual(expected.tokens);
  expect(relative(actual.after.logProbs, expected.after.logProbs)).toBeLessThan(1e-5);
  for (const [step, record] of expected.metrics.entries()) {
    for (const [name, value] of Object.entries(record)) {
      if (name.startsWith('perf/')) continue;
      const error = Math.abs((actual.metrics[step]?.[name] as number) - value) / Math.max(1, Math.abs(value));
      expect([name, error <= 2e-5]).toEqual([name, true]);
    }
  }
});

test('a critic on cp 2 learns as on one worker', async () => {
  const run = async (o: Partial<EngineOptions>) => {
    const critic = await Critic.create({ model: SHARDED_CRITIC, ...smallEngine, ...o });
    try {
      const { values } = await critic.computeValues(batch);
      for (let i = 0; i < 3; i++) await critic.updateCritic(batch, { miniBatchSize: batch.size / 2 });
      return { before: values, after: (await critic.computeValues(batch)).values };
    } finally {
      await critic.close();
    }
  };
  const expected = await run({ group: groups.one });
  const actual = await run({ group: groups.two, parallel: { cp: 2 } });
  expect(actual.before).toEqual(expected.before);
  expect(relative(actual.after, expected.after)).toBeLessThan(1e-5);
});

test('a mixture of experts, which two workers of a context share, trains as on one', async () => {
  const model = path.join(CONFORMANCE, 'models', 'mixtral', 'actor');
  const own = raggedBatch(8, 9, 120);
  const run = async (actor: Actor) => {
    const { logProbs } = await actor.computeLogProb(own);
    const first = own.drop('oldLogProbs').with({ oldLogProbs: logProbs });
    const { 'actor/ppo_kl': kl } = await actor.updatePolicy(first, {});
    return { kl, loss: (await actor.updatePolicy(own, {}))['actor/loss'] as number };
  };
  const expected = await withActor({ model, group: groups.one }, run);
  const actual = await withActor({ model, group: groups.two, parallel: { cp: 2, ep: 2 } }, run);
  expect(actual.kl).toBe(0);
  expect(Math.abs(actual.loss - expected.loss)).toBeLessThan(1e-5);
});

test('a checkpoint of cp 2 continues on one worker and on tp 2, and theirs on cp 2', async () => {
  const next = async (actor: Actor) => (await actor.updatePolicy(batch, update))['actor/loss'] as number;
  const layouts: Record<string, Layout> = {
    context: { group: groups.two, parallel: { cp: 2 } },
    alone: { group: groups.one },
    tensor: { group: groups.two, parallel: { tp: 2 } },
  };
  const losses: Record<string, number> = {};
  for (const [name, o] of Object.entries(layouts)) {
    losses[name] = await withActor(o, async (actor) => {
      await actor.updatePolicy(batch, update);
      await actor.saveCheckpoint(path.join(scratch, name));
      return next(actor);
    });
  }
  for (const [from, to] of [
    ['context', 'alone'],
    ['alone', 'context'],
    ['context', 'tensor'],
    ['tensor', 'context'],
  ] as const) {
    const loss = await withActor(layouts[to] as Layout, async (actor) => {
      await actor.loadCheckpoint(path.join(scratch, from));
      return next(actor);
    });
    expect(Math.abs(loss - (losses[from] as number))).toBeLessThan(1e-6);
  }
});
