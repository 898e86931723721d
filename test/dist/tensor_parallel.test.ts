import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { CONFORMANCE } from '../helpers/conformance';
import { raggedBatch, relative, SHARDED_CRITIC, SHARDED_MODEL, smallEngine } from '../helpers/sharded';

// Workers that share every matrix (tensor parallelism) have the numbers of one. The core alone, at more layouts:
// test/native/tensor_parallel_test.cc and tensor_parallel_files_test.cc.
const MODELS = path.join(CONFORMANCE, 'models');
const batch = raggedBatch(12, 5);
const update = { miniBatchSize: batch.size / 2, loss: { entropyCoeff: 0.01 } };

const scratch = mkdtempSync(path.join(tmpdir(), 'troupe-tp-'));
let groups: Record<'one' | 'two' | 'four', WorkerGroup>;
beforeAll(async () => {
  const launch = (worldSize: number) => WorkerGroup.launch({ worldSize, device: 'cpu', numThreads: 1 });
  groups = { one: await launch(1), two: await launch(2), four: await launch(4) };
});
afterAll(async () => {
  for (const group of Object.values(groups)) await group.close();
  rmSync(scratch, { recursive: true, force: true });
});

async function withActor<T>(
  o: Partial<EngineOptions> & { group: WorkerGroup },
  body: (actor: Actor) => Promise<T>,
): Promise<T> {
  const actor = await Actor.create({ model: SHARDED_MODEL, ...smallEngine, ...o });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

function worst(a: Float32Array, b: Float32Array): number {
  expect(a.length).toBe(b.length);
  return a.reduce((most, x, i) => Math.max(most, Math.abs(x - (b[i] as number))), 0);
}

async function train(actor: Actor) {
  const before = await actor.computeLogProb(batch, { entropy: true });
  const metrics = [];
  for (let i = 0; i < 5; i++) metrics.push(await actor.updatePolicy(batch, update));
  return { before, metrics, after: await actor.computeLogProb(batch) };
}

test.each<[string, 'two' | 'four', Partial<EngineOptions>]>([
  ['tp 2', 'two', { parallel: { tp: 2 } }],
  [
    'fsdp 2 x tp 2, sequence parallel, with checkpointing',
    'four',
    { parallel: { tp: 2, sequenceParallel: true }, gradientCheckpointing: true },
  ],
  ['megatron: tp 2, dp 2', 'four', { strategy: 'megatron', parallel: { tp: 2, sequenceParallel: true } }],
])('an actor on %s trains as on one worker', async (_, workers, o) => {
  const expected = await withActor({ group: groups.one }, train);
  const actual = await withActor({ ...o, group: groups[workers] }, train);
  expect(worst(actual.before.logProbs, expected.before.logProbs)).toBeLessThan(1e-5);
  expect(worst(actual.before.entropy as Float32Array, expected.before.entropy as Float32Array)).toBeLessThan(
    1e-5,
  );
  expect(relative(actual.after.logProbs, expected.after.logProbs)).toBeLessThan(1e-5);
  for (const [step, record] of expected.metrics.entries()) {
    for (const [name, value] of Object.entries(record)) {
      if (name.startsWith('perf/')) continue;
      const error = Math.abs((actual.metrics[step]?.[name] as number) - value) / Math.max(1, Math.abs(value));
      expect([name, error <= 2e-5]).toEqual([name, true]);
    }
  }
});

test.each<['two' | 'four', NonNullable<EngineOptions['parallel']>]>([
  ['two', { ep: 2 }],
  ['four', { ep: 2, tp: 2, sequenceParallel: true }],
])(
  'a mixture of experts on %s workers, %j, trains, generates and is saved as on one',
  async (workers, parallel) => {
    const model = path.join(MODELS, 'mixtral', 'actor');
    const own = raggedBatch(8, 9, 120);
    const prompts = Array.from({ length: own.size }, (_, i) => own.prompt(i));
    const sample = (actor: Actor) => actor.generate(prompts, { maxNewTokens: 5, n: 2, seed: 3 });
    const dir = path.join(scratch, `experts_${workers}`);
    const run = async (actor: Actor, save: boolean) => {
      const { logProbs } = await actor.computeLogProb(own);
      const first = own.drop('oldLogProbs').with({ oldLogProbs: logProbs });
      const metrics = await actor.updatePolicy(first, {});
      if (save) await actor.saveCheckpoint(dir);
      const samples = await sample(actor);
      return { logProbs, metrics, tokens: samples.get('tokens'), next: await actor.updatePolicy(own, {}) };
    };
    const expected = await withActor({ model, group: groups.one }, (actor) => run(actor, false));
    const actual = await withActor({ model, group: groups[workers], parallel }, (actor) => run(actor, true));
    expect(worst(actual.logProbs, expected.logProbs)).toBeLessThan(1e-5);
    expect(actual.metrics['actor/ppo_kl']).toBe(0);
    expect(actual.tokens).toEqual(expected.tokens);
    const loss = (metrics: object) => (metrics as Record<string, number>)['actor/loss'] as number;
    expect(Math.abs(loss(actual.next) - loss(expected.next))).toBeLessThan(1e-5);
    // Goes on in one process.
    const continued = await withActor({ model, group: groups.one }, async (actor) => {
      await actor.loadCheckpoint(dir);
      return actor.updatePolicy(own, {});
    });
    expect(Math.abs(loss(continued) - loss(actual.next))).toBeLessThan(1e-6);
  },
);

test('a critic on tp 2 learns as on one worker', async () => {
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
  const actual = await run({ group: groups.two, parallel: { tp: 2, sequenceParallel: true } });
  expect(worst(actual.before, expected.before)).toBeLessThan(1e-5);
  expect(relative(actual.after, expected.after)).toBeLessThan(1e-5);
});

test.each(readdirSync(MODELS))('%s on tp 2 scores and generates as on one worker', async (name) => {
  const model = path.join(MODELS, name, 'actor');
  const vocabulary = (
    JSON.parse(readFileSync(path.join(model, 'config.json'), 'utf8')) as { vocab_size: number }
  ).vocab_size;
  const own = raggedBatch(6, 9, vocabulary);
  const prompts = Array.from({ length: own.size }, (_, i) => own.prompt(i));
  const run = async (actor: Actor) => ({
    logProbs: (await actor.computeLogProb(own)).logProbs,
    samples: await actor.generate(prompts, { maxNewTokens: 5, n: 2, seed: 3 }),
  });
  const expected = await withActor({ model, group: groups.one }, run);
  const actual = await withActor({ model, group: groups.two, parallel: { tp: 2 } }, run);
  expect(worst(actual.logProbs, expected.logProbs)).toBeLessThan(1e-5);
  expect(actual.samples.get('tokens')).toEqual(expected.samples.get('tokens'));
});

test('a checkpoint of tp 2 continues on one worker and on two that share by data, and theirs on tp 2', async () => {
  const next = async (actor: Actor) => (await actor.updatePolicy(batch, update))['actor/loss'] as number;
  const layouts: Record<string, Partial<EngineOptions> & { group: WorkerGroup }> = {
    tensor: { group: groups.two, parallel: { tp: 2, sequenceParallel: true } },
    alone: { group: groups.one },
    data: { group: groups.two },
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
    ['tensor', 'alone'],
    ['tensor', 'data'],
    ['alone', 'tensor'],
    ['data', 'tensor'],
  ] as const) {
    const continued = await withActor(layouts[to] as (typeof layouts)['alone'], async (actor) => {
      await actor.loadCheckpoint(path.join(scratch, from));
      return next(actor);
    });
    expect(Math.abs(continued - (losses[from] as number))).toBeLessThan(1e-6);
  }
});
