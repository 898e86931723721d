import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor, type LogProbResult } from '../../ts/actor/actor';
import type { Batch } from '../../ts/batch/batch';
import { Critic } from '../../ts/critic/critic';
import type { UpdateMetrics } from '../../ts/engine/engine_metrics';
import type { EngineOptions } from '../../ts/engine/engine_options';
import type { NativeStateBytes, Sharding } from '../../ts/native/bridge';
import { observedGroup } from '../helpers/observed_group';
import { Pauses } from '../helpers/pauses';
import {
  expectSameMetrics,
  raggedBatch,
  relative,
  SHARDED_CRITIC,
  SHARDED_MODEL,
  smallEngine,
} from '../helpers/sharded';

// One model over several worker processes, with the numbers of one.
const UPDATES = 10;
const actorOptions = { ...smallEngine, model: SHARDED_MODEL };
const criticOptions = { ...smallEngine, model: SHARDED_CRITIC };

async function withActor<T>(o: Partial<EngineOptions>, body: (actor: Actor) => Promise<T>): Promise<T> {
  const actor = await Actor.create({ ...actorOptions, ...o });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

interface ActorRun {
  before: LogProbResult;
  metrics: UpdateMetrics[];
  after: LogProbResult;
  samples: Batch;
  bytes: NativeStateBytes[];
}

async function trainActor(actor: Actor, batch: Batch, updates: number): Promise<ActorRun> {
  const before = await actor.computeLogProb(batch, { entropy: true });
  const metrics: UpdateMetrics[] = [];
  for (let i = 0; i < updates; i++) {
    metrics.push(
      await actor.updatePolicy(batch, {
        miniBatchSize: batch.size / 2,
        loss: { entropyCoeff: 0.01, useKlLoss: true, klLossCoef: 0.1 },
      }),
    );
  }
  const prompts = Array.from({ length: batch.size }, (_, i) => batch.prompt(i));
  return {
    before,
    metrics,
    after: await actor.computeLogProb(batch),
    samples: await actor.generate(prompts, { maxNewTokens: 4, n: 2, seed: 5 }),
    bytes: await actor.engine.group.callAll(actor.name, 'stateBytes', () => []),
  };
}

/** All of them, one after the other. */
async function weightsOf(engine: Actor | Critic): Promise<Float32Array> {
  const values: number[] = [];
  for await (const { parts } of engine.exportWeights())
    for (const { data } of parts)
      values.push(...new Float32Array(data.buffer, data.byteOffset, data.length / 4));
  return Float32Array.from(values);
}

const total = (b: NativeStateBytes): number => b.parameters + b.gradients + b.moments;

describe('an actor', () => {
  const batch = raggedBatch(10, 1);
  let one: ActorRun;
  beforeAll(async () => {
    one = await withActor({}, (actor) => trainActor(actor, batch, UPDATES));
  });

  const spreads: [number, Sharding, boolean, number?][] = [
    [2, 'full_shard', true],
    [2, 'no_shard', false],
    [3, 'shard_grad_op', false],
    [4, 'full_shard', false, 2],
    [8, 'full_shard', true],
  ];
  test.each(spreads)(
    'over %d workers with %s (checkpointing: %s) has the numbers of one',
    async (worldSize, sharding, gradientCheckpointing, fsdpSize = -1) => {
      const o = { worldSize, parallel: { sharding, fsdpSize }, gradientCheckpointing };
      const many = await withActor(o, (actor) => trainActor(actor, batch, UPDATES));
      expect(many.before).toEqual(one.before); // bitwise
      expectSameMetrics(many.metrics, one.metrics);
      expect(relative(many.after.logProbs, one.after.logProbs)).toBeLessThan(1e-6);
      expect(many.samples.get('tokens')).toEqual(one.samples.get('tokens'));
      const parts = sharding === 'no_shard' ? 1 : fsdpSize === -1 ? worldSize : fsdpSize;
      const share = total(one.bytes[0] as NativeStateBytes) / parts;
      for (const bytes of many.bytes) expect(Math.abs(total(bytes) / share - 1)).toBeLessThan(0.1);
    },
  );

  test('with fewer sequences than workers, and one much longer than the rest', async () => {
    const two = batch.slice(0, 2);
    const expected = await withActor({}, (actor) => trainActor(actor, two, 2));
    const actual = await withActor({ worldSize: 3 }, (actor) => trainActor(actor, two, 2));
    expect(actual.before).toEqual(expected.before);
    expectSameMetrics(actual.metrics, expected.metrics);
    expect(actual.samples.get('tokens')).toEqual(expected.samples.get('tokens'));
  });

  test('learns the same from supervised batches', async () => {
    const sft = (actor: Actor) => actor.updateSft(batch);
    expectSameMetrics([await withActor({ worldSize: 2 }, sft)], [await withActor({}, sft)]);
  });

  test('saved by two workers is loaded by three and by one', async () => {
    const dir = mkdtempSync(path.join(tmpdir(), 'troupe-fsdp-'));
    const checkpoint = path.join(dir, 'checkpoint');
    const next = (actor: Actor) => trainActor(actor, batch, 2);
    try {
      const went = await withActor({ worldSize: 2 }, async (actor) => {
        await trainActor(actor, batch, 2);
        await actor.saveCheckpoint(checkpoint);
        await actor.saveModel(path.join(dir, 'model'));
        return next(actor);
      });
      for (const worldSize of [3, 1]) {
        const resumed = await withActor({ worldSize }, async (actor) => {
          await actor.loadCheckpoint(checkpoint);
          expect(await actor.optimizerSteps()).toBe(4);
          return next(actor);
        });
        expect(resumed.before).toEqual(went.before); // bitwise
        expectSameMetrics(resumed.metrics, went.metrics);
      }
      const saved = { model: path.join(dir, 'model'), optim: null };
      const loaded = await withActor(saved, (actor) => actor.computeLogProb(batch, { entropy: true }));
      // The fixture is stored in float32, so nothing is lost on the way.
      expect(loaded).toEqual(went.before);
    } finally {
      rmSync(dir, { recursive: true });
    }
  });

  test('goes on from eight workers over three to one', async () => {
    const dir = mkdtempSync(path.join(tmpdir(), 'troupe-fsdp-'));
    let saved: { checkpoint: string; logProbs: LogProbResult } | null = null;
    try {
      for (const [i, worldSize] of [8, 3, 1].entries()) {
        saved = await withActor({ worldSize }, async (actor): Promise<typeof saved> => {
          if (saved !== null) await actor.loadCheckpoint(saved.checkpoint);
          const run = await trainActor(actor, batch, 3);
          if (saved !== null) expect(run.before.logProbs).toEqual(saved.logProbs.logProbs); // bitwise
          expectSameMetrics(run.metrics, one.metrics.slice(3 * i, 3 * i + 3), 3 * i);
          const checkpoint = path.join(dir, `by_${worldSize}`);
          await actor.saveCheckpoint(checkpoint);
          return { checkpoint, logProbs: run.after };
        });
      }
    } finally {
      rmSync(dir, { recursive: true });
    }
  });

  test('does not depend on when its workers run: they are stopped at random', async () => {
    const run = async (disturb: boolean) => {
      const { group, processes } = await observedGroup({ worldSize: 4, device: 'cpu', numThreads: 1 });
      const pauses = new Pauses(processes);
      const create = { ...smallEngine, group, parallel: { sharding: 'full_shard' as const } };
      try {
        const actor = await Actor.create({ ...create, model: SHARDED_MODEL });
        const critic = await Critic.create({ ...create, model: SHARDED_CRITIC });
        if (disturb) pauses.start();
        const { metrics, after, samples } = await trainActor(actor, batch, 4);
        const losses: UpdateMetrics[] = [];
        for (let i = 0; i < 4; i++) losses.push(await critic.updateCritic(batch, { miniBatchSize: 5 }));
        const { values } = await critic.computeValues(batch);
        const exact = (records: UpdateMetrics[]) =>
          records.map((r) => Object.entries(r).filter(([name]) => !name.startsWith('perf/')));
        const tokens = samples.get('tokens');
        return { result: [exact(metrics), exact(losses), after, tokens, values], pauses: pauses.count };
      } finally {
        pauses.stop();
        await group.close();
      }
    };
    const calm = await run(false);
    const disturbed = await run(true);
    expect(disturbed.pauses).toBeGreaterThan(10);
    expect(disturbed.result).toEqual(calm.result); // bitwise
  });

  test('refuses shards of no whole number of workers', async () => {
    const create = (o: Partial<EngineOptions>) => withActor(o, async () => undefined);
    await expect(create({ worldSize: 4, parallel: { fsdpSize: 3 } })).rejects.toThrow(
      /fsdpSize 3: expected -1, a divisor of worldSize = 4/,
    );
  });
});

test('a critic over three and over eight workers has the numbers of one', async () => {
  const batch = raggedBatch(8, 2);
  const run = async (o: Partial<EngineOptions>) => {
    const critic = await Critic.create({ ...criticOptions, ...o });
    const metrics: UpdateMetrics[] = [];
    try {
      const before = await critic.computeValues(batch);
      for (let i = 0; i < UPDATES; i++) metrics.push(await critic.updateCritic(batch, { miniBatchSize: 4 }));
      const { values } = await critic.computeValues(batch);
      return { before, metrics, values, weights: await weightsOf(critic) };
    } finally {
      await critic.close();
    }
  };
  const one = await run({});
  for (const worldSize of [3, 8]) {
    const many = await run({ worldSize, gradientCheckpointing: true });
    expect(many.before).toEqual(one.before);
    expectSameMetrics(many.metrics, one.metrics);
    expect(relative(many.weights, one.weights)).toBeLessThan(1e-6);
    // One process with another capacity moves them by 1.04e-6.
    expect(relative(many.values, one.values)).toBeLessThan(2e-6);
  }
});

test('gradients that are sent in bfloat16: fewer bytes, and the same training up to their rounding', async () => {
  const batch = raggedBatch(8, 3, 100);
  const run = (reduceDtype: 'float32' | 'bfloat16') =>
    withActor({ worldSize: 2, parallel: { sharding: 'shard_grad_op', reduceDtype } }, async (actor) => {
      const sent = () => actor.engine.group.callAll(actor.name, 'bytesSent', () => []);
      const before = await sent();
      const { metrics } = await trainActor(actor, batch, 1);
      const bytes = (await sent()).map((after, rank) => after - (before[rank] as number));
      return { norm: metrics[0]?.['actor/grad_norm'] as number, bytes: Math.max(...bytes) };
    });
  const [wide, narrow] = [await run('float32'), await run('bfloat16')];
  expect(narrow.norm).not.toBe(wide.norm);
  expect(Math.abs(narrow.norm / wide.norm - 1)).toBeLessThan(2 ** -8);
  expect(narrow.bytes).toBeLessThan(0.9 * wide.bytes);
  await expect(
    Actor.create({ ...actorOptions, parallel: { reduceDtype: 'float16' as 'float32' } }),
  ).rejects.toThrow(/parallel.reduceDtype: expected one of float32, bfloat16 but got "float16"/);
});
