import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Actor } from '../../ts/actor/actor';
import { Critic } from '../../ts/critic/critic';
import type { UpdateMetrics } from '../../ts/engine/engine_metrics';
import type { EngineOptions } from '../../ts/engine/engine_options';
import type { OffloadOptions } from '../../ts/engine/offload_options';
import type { NativeStateBytes } from '../../ts/native/bridge';
import type { WeightBucket } from '../../ts/weights/weight_bucket';
import { raggedBatch, SHARDED_CRITIC, smallEngine, withActor } from '../helpers/sharded';

// Real workers whose state lies on the host: the breadth is test/native/offload_test.cc's.
const everything: OffloadOptions = { params: true, grads: true, optimizer: true };
const batch = raggedBatch(8, 6);
const prompts = Array.from({ length: batch.size }, (_, i) => batch.prompt(i));

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-offload-'));
});
afterEach(() => {
  rmSync(dir, { recursive: true });
});

const update = (actor: Actor): Promise<UpdateMetrics> =>
  actor.updatePolicy(batch, { miniBatchSize: 4, loss: { useKlLoss: true } });

/** What does not depend on the machine. */
const numbers = (metrics: UpdateMetrics): [string, number][] =>
  Object.entries(metrics).filter(([name]) => !name.startsWith('perf/'));

async function everyVerb(actor: Actor) {
  const before = await actor.computeLogProb(batch, { entropy: true });
  const metrics = numbers(await update(actor));
  const samples = await actor.generate(prompts, { maxNewTokens: 4, seed: 5 });
  return { before, metrics, samples: samples.get('tokens'), after: await actor.computeLogProb(batch) };
}

const bytesOf = (actor: Actor): Promise<NativeStateBytes[]> =>
  actor.engine.group.callAll(actor.name, 'stateBytes', () => []);

test('two workers with everything on the host and gathers ahead do what two without do', async () => {
  for (const dtype of ['float32', 'bfloat16'] as const) {
    const plain = await withActor({ worldSize: 2, dtype }, everyVerb);
    const o = { worldSize: 2, dtype, offload: everything, parallel: { prefetch: true } };
    expect(await withActor(o, everyVerb)).toEqual(plain); // bitwise
  }
});

test('activations that wait on the host change no number', async () => {
  const o = { worldSize: 2, gradientCheckpointing: true };
  const plain = await withActor(o, everyVerb);
  for (const offload of [{}, everything])
    expect(await withActor({ ...o, offload, activationOffload: true }, everyVerb)).toEqual(plain); // bitwise
});

test('state that is moved between calls comes back by itself, and a checkpoint is the same from there', async () => {
  const still = await withActor({ worldSize: 2 }, async (actor) => {
    const runs = [await everyVerb(actor), await everyVerb(actor)];
    await actor.saveCheckpoint(path.join(dir, 'still'));
    return { runs, next: await everyVerb(actor) };
  });
  await withActor({ worldSize: 2 }, async (actor) => {
    const before = await bytesOf(actor);
    const runs = [await everyVerb(actor)];
    await actor.offload();
    for (const [rank, bytes] of (await bytesOf(actor)).entries()) {
      const { parameters, gradients, moments } = before[rank] as NativeStateBytes;
      expect(bytes).toEqual({
        parameters: 0,
        gradients: 0,
        moments: 0,
        host: { parameters, gradients, moments },
      });
    }
    runs.push(await everyVerb(actor));
    expect(runs).toEqual(still.runs);
    await actor.saveCheckpoint(path.join(dir, 'moved'));
    await actor.onload({ params: true });
    expect((await bytesOf(actor))[0]).toMatchObject({ moments: 0, host: { parameters: 0 } });
    await actor.onload();
    expect(await bytesOf(actor)).toEqual(before);
    expect(await everyVerb(actor)).toEqual(still.next);
  });
  // Saved by two from the host, loaded by one on its device, and the other way round; and into state on the host.
  const resumed = (from: string, o: Partial<EngineOptions>) =>
    withActor(o, async (actor) => {
      await actor.loadCheckpoint(path.join(dir, from));
      return everyVerb(actor);
    });
  const moved = await resumed('moved', {});
  expect(await resumed('still', { offload: everything })).toEqual(moved);
  expect(moved.before).toEqual(still.next.before);
  expect(await resumed('moved', { worldSize: 2, offload: everything })).toEqual(still.next);
}, 60_000);

test('weights leave and arrive in buckets while they are on the host', async () => {
  const host = { worldSize: 2, offload: everything };
  const buckets: WeightBucket[] = [];
  const expected = await withActor(host, async (actor) => {
    await update(actor);
    for await (const bucket of actor.exportWeights()) buckets.push(bucket);
    return actor.computeLogProb(batch);
  });
  for (const o of [host, {}]) {
    const arrived = await withActor(o, async (actor) => {
      await actor.importWeights(buckets);
      await actor.onload({ params: true });
      return actor.computeLogProb(batch);
    });
    expect(arrived).toEqual(expected);
  }
});

test('a critic, adapters and supervised batches', async () => {
  const critic = async (o: Partial<EngineOptions>) => {
    const critic_ = await Critic.create({ ...smallEngine, model: SHARDED_CRITIC, ...o });
    try {
      const metrics = numbers(await critic_.updateCritic(batch, { miniBatchSize: 4 }));
      await critic_.offload({ optimizer: true });
      await critic_.onload();
      return [metrics, (await critic_.computeValues(batch)).values];
    } finally {
      await critic_.close();
    }
  };
  const host = { offload: everything, parallel: { prefetch: true } };
  expect(await critic({ worldSize: 2, ...host })).toEqual(await critic({ worldSize: 2 }));
  expect(await critic(host)).toEqual(await critic({}));
  const sft = async (actor: Actor) => [
    numbers(await actor.updateSft(batch)),
    await actor.computeLogProb(batch),
    await actor.computeLogProb(batch, { disableAdapter: true }),
  ];
  const lora = { worldSize: 2, lora: { rank: 4 } };
  expect(await withActor({ ...lora, ...host }, sft)).toEqual(await withActor(lora, sft));
}, 60_000);

test('one reduction per mini-batch: fewer bytes, the same numbers but for the order of a sum', async () => {
  const longer = raggedBatch(24, 3); // several micro-batches of each rank
  const run = (reduce: 'micro_batch' | 'mini_batch') =>
    withActor({ worldSize: 2, maxTokensPerMicroBatch: 48, parallel: { reduce } }, async (actor) => {
      const sent = () => actor.engine.group.callAll(actor.name, 'bytesSent', () => []);
      const [before] = await sent();
      const metrics = await actor.updatePolicy(longer);
      const [after] = await sent();
      return { metrics, bytes: (after as number) - (before as number) };
    });
  const often = await run('micro_batch');
  const once = await run('mini_batch');
  expect(once.bytes).toBeLessThan(often.bytes);
  for (const [name, value] of numbers(often.metrics)) {
    const error = Math.abs((once.metrics[name] as number) - value) / Math.max(1, Math.abs(value));
    expect(error).toBeLessThan(1e-6);
  }
});

test('mistakes are named', async () => {
  const create = (o: object) => withActor(o as Partial<EngineOptions>, async () => undefined);
  await expect(create({ offload: { parameters: true } })).rejects.toThrow(
    /offload\] unknown option 'parameters'; did you mean 'params'/,
  );
  await expect(create({ activationOffload: true })).rejects.toThrow(
    /activationOffload: what waits on the host .*: expected gradientCheckpointing true beside it/,
  );
  await expect(create({ parallel: { reduce: 'epoch' } })).rejects.toThrow(
    /parallel.reduce: expected one of micro_batch, mini_batch but got "epoch"/,
  );
  await withActor({ optim: null }, async (actor) => {
    await actor.offload();
    await expect(actor.offload({ optimizer: true })).rejects.toThrow(
      /inference-only engine \(optim: null\) has no gradients or optimiser state to move/,
    );
    expect((await actor.computeLogProb(batch)).logProbs).toHaveLength(batch.numResponseTokens);
  });
});
